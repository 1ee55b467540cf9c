//! The page of defects: every test and every planted bug that it names exists, so that a renamed or removed test cannot
//! leave a defect without its guard.

use std::path::Path;

use super::{Findings, read};

const PAGE: &str = "docs/defects.md";
const BUGS: &str = "crates/core/src/planted.rs";

/// Checks every row of the table.
pub(super) fn check(root: &Path, findings: &mut Findings) -> Result<(), String> {
    let (page, bugs) = (read(&root.join(PAGE))?, read(&root.join(BUGS))?);
    findings.refused.extend(problems(&page, &bugs, |test| exists(root, test)));
    Ok(())
}

/// What is wrong with the rows of a page.
fn problems(page: &str, bugs: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let rows = rows(page);
    if rows.is_empty() {
        return vec![format!("{PAGE} has no table of defects")];
    }
    let mut problems = Vec::new();
    for row in rows {
        let place = format!("{PAGE}:{}", row.line);
        let missing = row.tests.iter().filter(|test| !exists(test));
        problems.extend(missing.map(|test| format!("{place} names a test that is not there: {test}")));
        let unknown = row.bugs.iter().filter(|bug| !bugs.contains(&format!("\"{bug}\"")));
        problems.extend(unknown.map(|bug| format!("{place} names an unknown planted bug: {bug}")));
        if row.tests.is_empty() {
            problems.push(format!("{place} names no test"));
        }
    }
    problems
}

/// One defect.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    line: usize,
    /// Each as `path::name`.
    tests: Vec<String>,
    bugs: Vec<String>,
}

/// The rows of the table, without its head.
fn rows(page: &str) -> Vec<Row> {
    let lines = (1..).zip(page.lines()).filter(|(_, line)| line.starts_with('|'));
    let row = |(line, text): (usize, &str)| {
        let cells: Vec<&str> = text.trim_matches('|').split('|').collect();
        let names = |cell: Option<&&str>| cell.map(|cell| quoted(cell)).unwrap_or_default();
        Row { line, tests: names(cells.get(1)), bugs: names(cells.get(2)) }
    };
    lines.skip(2).map(row).collect()
}

/// The texts between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether a file has a test of this name, as Rust, Python or TypeScript writes it.
fn exists(root: &Path, test: &str) -> bool {
    let Some((path, name)) = test.rsplit_once("::") else { return false };
    let heads = [format!("fn {name}("), format!("def {name}("), format!("test(\"{name}\",")];
    read(&root.join(path)).is_ok_and(|text| heads.iter().any(|head| text.contains(head)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_its_test_or_its_bug_is_refused() {
        let found = |rows: &str| {
            let page = format!("# Defects\n\n| d | t | p |\n|---|---|---|\n{rows}");
            problems(&page, "\"epoch_not_checked\" \"...\",", |test| test == "a.rs::it_holds")
        };
        assert_eq!(found("| `x` broke | `a.rs::it_holds` | `epoch_not_checked` |\n"), Vec::<String>::new());
        assert_eq!(
            found("| x broke | `a.rs::it_holds`, `a.rs::it_held` | |\n"),
            ["docs/defects.md:5 names a test that is not there: a.rs::it_held"]
        );
        assert!(found("| x broke | `a.rs::it_holds` | `epoch_unknown` |\n")[0].contains("epoch_unknown"));
        assert!(found("| x broke | | |\n")[0].contains("no test"));
        assert_eq!(found("").len(), 1);
    }

    #[test]
    fn a_test_is_known_by_its_file_and_name() {
        let root = super::super::root();
        assert!(exists(&root, "xtask/src/house/defects.rs::a_test_is_known_by_its_file_and_name"));
        assert!(exists(&root, "sdks/typescript/test/worker.test.ts::a cancellation reaches the function"));
        assert!(!exists(&root, "xtask/src/house/defects.rs::a_test_is_known_by_its_file"));
        assert!(!exists(&root, "xtask/src/house/nowhere.rs::a_test_is_known_by_its_file_and_name"));
    }
}
