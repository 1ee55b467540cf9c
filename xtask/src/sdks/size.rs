//! How large an SDK is. It is meant to be read in an hour, so its size is bounded.

use std::path::Path;

use super::Checks;

/// Lines of code that an SDK may have beside its generated files.
const CODE_LINES_MAX: usize = 2_000;

/// Which lines of a language are code: no blank lines, comments, documentation or imports.
pub(super) struct Language {
    extension: &'static str,
    /// Files that a tool writes.
    generated: &'static [&'static str],
    count: fn(&str) -> usize,
}

pub(super) const PYTHON: Language = Language { extension: "py", generated: &["wire.py", "_sync.py"], count: python };
pub(super) const TYPESCRIPT: Language = Language { extension: "ts", generated: &["wire.ts"], count: typescript };

/// Refuses an SDK that has grown past what can be read in an hour.
pub(super) fn check(checks: &Checks, sources: &str, language: &Language) -> Result<(), String> {
    let folder = checks.folder.join(sources);
    let lines = count(&folder, language)?;
    println!("sdks/{}: {lines} lines of code, {CODE_LINES_MAX} at most", checks.name);
    if lines <= CODE_LINES_MAX { Ok(()) } else { Err(format!("{} has {lines} lines of code", folder.display())) }
}

fn count(folder: &Path, language: &Language) -> Result<usize, String> {
    let entries = std::fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let mut lines = 0;
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|is| is == language.extension) && !language.generated.contains(&name) {
            let text = std::fs::read_to_string(&path).map_err(|why| format!("{}: {why}", path.display()))?;
            lines += (language.count)(&text);
        }
    }
    Ok(lines)
}

/// Documentation is a text that begins its line with three quotation marks.
fn python(text: &str) -> usize {
    let mut lines = text.lines().map(str::trim);
    let mut code = 0;
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("\"\"\"") {
            let mut rest = rest;
            while !rest.contains("\"\"\"") {
                rest = lines.next().unwrap_or("\"\"\"");
            }
        } else if line.starts_with("import ") || line.starts_with("from ") && line.contains(" import ") {
            let mut rest = line;
            while rest.contains('(') && !rest.contains(')') || rest.ends_with(',') {
                rest = lines.next().unwrap_or_default();
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            code += 1;
        }
    }
    code
}

/// Comments stand on lines of their own.
fn typescript(text: &str) -> usize {
    let mut lines = text.lines().map(str::trim);
    let mut code = 0;
    while let Some(line) = lines.next() {
        if line.starts_with("/*") {
            let mut rest = line;
            while !rest.contains("*/") {
                rest = lines.next().unwrap_or("*/");
            }
        } else if !line.is_empty() && !line.starts_with("//") && !line.starts_with("import ") {
            code += 1;
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_code_are_not_counted() {
        let text = "\"\"\"One\nTwo\"\"\"\nimport os\nfrom a import (\n    b,\n    c,\n)\n\n# why\ndef f() -> int:\n    \"\"\"Three\"\"\"\n    return 1\n";
        assert_eq!(python(text), 2);
        let text = "/** One\n * two */\nimport { a } from \"b\";\n\n// why\nconst one = 1;\nexport { one };\n";
        assert_eq!(typescript(text), 2);
    }
}
