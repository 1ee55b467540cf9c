//! Tables without borders, and lists of fields.

use comfy_table::presets::NOTHING;
use comfy_table::{Attribute, Color, ContentArrangement};

use crate::output::{Colour, Style};
use crate::span;

/// The text of an empty cell.
const NOTHING_THERE: &str = "-";

/// A cell: text, perhaps in a colour.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    colour: Option<Colour>,
}

impl Cell {
    /// A cell with the text of a value.
    pub(crate) fn of(value: impl ToString) -> Self {
        Self { text: one_line(&value.to_string()), colour: None }
    }

    /// A cell with the text of a value that may be missing.
    pub(crate) fn maybe(value: Option<impl ToString>) -> Self {
        match value.map(|value| value.to_string()) {
            Some(text) if !text.is_empty() => Self::of(text),
            _ => Self { text: NOTHING_THERE.into(), colour: Some(Colour::Dim) },
        }
    }

    /// Text in a colour.
    pub(crate) fn coloured(value: impl ToString, colour: Colour) -> Self {
        Self { colour: Some(colour), ..Self::of(value) }
    }

    /// An instant.
    pub(crate) fn at(at_ms: i64) -> Self {
        Self::of(span::instant(at_ms))
    }

    /// An instant that may be missing.
    pub(crate) fn maybe_at(at_ms: Option<i64>) -> Self {
        Self::maybe(at_ms.map(span::instant))
    }

    /// Several words.
    pub(crate) fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> Self {
        let words: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
        Self::maybe(Some(words.join(",")))
    }
}

/// Text of others must not move the cursor or break a row.
pub(crate) fn one_line(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    table: comfy_table::Table,
    rows: usize,
}

impl Table {
    pub(crate) fn new<const N: usize>(header: [&str; N]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(header.map(|name| comfy_table::Cell::new(name).add_attribute(Attribute::Bold)));
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Self { table, rows: 0 }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows += 1;
        self.table.add_row(cells.map(paint));
    }

    /// The table, or a sentence when it is empty.
    pub(crate) fn text(mut self, style: Style, empty: &str) -> String {
        if self.rows == 0 {
            return empty.to_owned();
        }
        if style.has_colours() {
            self.table.enforce_styling();
        } else {
            self.table.force_no_tty();
        }
        self.table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }
}

fn paint(cell: Cell) -> comfy_table::Cell {
    let painted = comfy_table::Cell::new(cell.text);
    match cell.colour {
        None => painted,
        Some(Colour::Dim) => painted.add_attribute(Attribute::Dim),
        Some(Colour::Red) => painted.fg(Color::DarkRed),
        Some(Colour::Green) => painted.fg(Color::DarkGreen),
        Some(Colour::Yellow) => painted.fg(Color::DarkYellow),
        Some(Colour::Blue) => painted.fg(Color::DarkBlue),
        Some(Colour::Magenta) => painted.fg(Color::DarkMagenta),
        Some(Colour::Cyan) => painted.fg(Color::DarkCyan),
    }
}

/// Names and values, one a line. Missing values are left out.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<(&'static str, Cell)>);

impl Fields {
    pub(crate) fn add(&mut self, name: &'static str, cell: Cell) {
        if cell.text != NOTHING_THERE {
            self.0.push((name, cell));
        }
    }

    pub(crate) fn text(&self, style: Style) -> String {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let line = |(name, cell): &(&str, Cell)| {
            let value = cell.colour.map_or_else(|| cell.text.clone(), |colour| style.paint(colour, &cell.text));
            format!("{}  {value}", style.paint(Colour::Dim, &format!("{name:width$}")))
        };
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["NAME", "STATE"]);
        table.row([Cell::of("a-long-name"), Cell::coloured("failed", Colour::Red)]);
        table.row([Cell::of("b"), Cell::maybe(None::<&str>)]);
        table
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_blanks_at_their_end() {
        assert_eq!(table().text(Style::new(false), ""), "NAME         STATE\na-long-name  failed\nb            -");
        assert_eq!(Table::new(["NAME"]).text(Style::new(false), "nothing here"), "nothing here");
    }

    #[test]
    fn colours_are_there_only_when_asked_for() {
        let coloured = table().text(Style::new(true), "");
        assert!(coloured.contains("\u{1b}[") && coloured.contains("failed"), "{coloured:?}");
        let mut fields = Fields::default();
        fields.add("state", Cell::coloured("failed", Colour::Red));
        assert!(fields.text(Style::new(true)).contains("\u{1b}[31mfailed\u{1b}[0m"));
        assert_eq!(fields.text(Style::new(false)), "state  failed");
    }

    #[test]
    fn control_characters_of_others_are_shown_and_not_obeyed() {
        assert_eq!(one_line("a\nb\u{1b}[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(one_line("plain é"), "plain é");
    }
}
