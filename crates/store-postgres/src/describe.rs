//! The columns beside a document, for people. The store cannot read documents: the program that opens it brings a
//! function.

use ff_core::Key;

/// A pure function from a document to what people want to query; `None` leaves the columns empty.
pub type Describe = fn(&Key, &[u8]) -> Option<Columns>;

/// A pure function from a document to all of it as JSON text; `None` leaves the column empty.
pub type View = fn(&Key, &[u8]) -> Option<String>;

/// Columns that people query. Never read back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Columns {
    /// The namespace.
    pub namespace: Option<String>,
    /// The lane.
    pub lane: Option<String>,
    /// The kind of the execution, flow, ...
    pub kind: Option<String>,
    /// Its public state.
    pub state: Option<String>,
    /// The flow it belongs to.
    pub flow: Option<String>,
    /// Its priority.
    pub priority: Option<i32>,
    /// Milliseconds since the epoch.
    pub created_at: Option<i64>,
    /// Milliseconds since the epoch.
    pub updated_at: Option<i64>,
}

impl Columns {
    /// Leaves out what PostgreSQL cannot hold. A commit must never fail because of a column that nothing depends on.
    pub(crate) fn storable(mut self) -> Self {
        for text in [&mut self.namespace, &mut self.lane, &mut self.kind, &mut self.state, &mut self.flow] {
            if text.as_ref().is_some_and(|text| text.contains('\0')) {
                *text = None;
            }
        }
        self
    }
}

/// A view that PostgreSQL can hold.
pub(crate) fn storable_view(view: String) -> Option<String> {
    // A NUL stands in JSON text as an escape; an escaped backslash before `u0000` costs a view at worst.
    let has_nul = view.contains('\0') || view.contains("\\u0000");
    (!has_nul).then_some(view)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_postgres_cannot_hold_is_left_out() {
        let columns = Columns { namespace: Some("a\0b".into()), lane: Some("fine".into()), ..Columns::default() };
        assert_eq!(columns.storable(), Columns { lane: Some("fine".into()), ..Columns::default() });
        assert_eq!(storable_view(r#"{"text":"a\u0000b"}"#.into()), None);
        assert_eq!(storable_view("{}".into()), Some("{}".into()));
    }
}
