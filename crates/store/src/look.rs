//! The findings of a read-only inspection of a database, for `ff doctor`.

/// The layout of a store (its tables, or its function library): which it has, and which this program needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// `None` where no store has been set up yet.
    pub found: Option<u32>,
    /// The layout that this program needs. An older one is upgraded at the next start.
    pub needed: u32,
}

impl Layout {
    /// Whether the store can be used as it is.
    pub fn ready(&self) -> bool {
        self.found == Some(self.needed)
    }
}

/// The findings of an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The version of the database.
    pub version: String,
    /// Its layout.
    pub layout: Layout,
    /// Settings of the database that durability and capacity depend on, by name.
    pub settings: Vec<(String, String)>,
    /// Advice to the operator, in sentences.
    pub warnings: Vec<String>,
}
