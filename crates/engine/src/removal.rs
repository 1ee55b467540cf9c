//! How much one commit removes.

/// How much a commit that removes something still takes. Everything that goes costs a part of it.
pub(crate) struct Removal {
    size: usize,
    left: usize,
}

impl Removal {
    /// A commit that removes so many documents and logs.
    pub(crate) fn of(size: usize) -> Self {
        let size = size.max(2);
        Self { size, left: size }
    }

    /// How many more.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.left == self.size
    }

    /// So many go.
    pub(crate) fn take(&mut self, count: usize) {
        self.left = self.left.saturating_sub(count);
    }
}
