//! Guards the house: the arrows between crates and between the modules of a crate, the methods of the object that puts the engine
//! together, the sizes of files, stray files, the openings of comments, and the tests that the page of defects names.
//!
//! Cycles between modules that are allowed are recorded in `xtask/house.json`; none may grow, and no other may come.
//! `ARCHITECTURE.md` shows the arrows as they are computed here. `UPDATE=1 cargo xtask tidy` records both anew.

mod arrows;
mod crates;
mod defects;
mod files;
mod source;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use arrows::Graph;

/// The crates whose modules are checked.
const CRATES: [&str; 3] = ["engine", "server", "sdk"];
/// The object that everything else is reached through, and how many methods it may have: it puts services
/// together, and what they do stands in them.
const ASSEMBLY: (&str, &str, usize) = ("engine", "Engine", 30);
const RECORD: &str = "xtask/house.json";
const PAGE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- modules: begin; `UPDATE=1 cargo xtask tidy` writes what follows -->\n";
const END: &str = "<!-- modules: end -->\n";

/// The findings of the checks.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Findings that are better mended.
    pub(super) warnings: Vec<String>,
    /// Findings that must be mended.
    pub(super) refused: Vec<String>,
}

/// Checks the house; whether it is in order. The findings are written to standard error.
pub(crate) fn is_in_order() -> bool {
    let update = std::env::var_os("UPDATE").is_some();
    let findings = match check(&root(), update) {
        Ok(findings) => findings,
        Err(why) => Findings { refused: vec![why], ..Findings::default() },
    };
    for warning in &findings.warnings {
        eprintln!("warning: {warning}");
    }
    for refused in &findings.refused {
        eprintln!("refused: {refused}");
    }
    findings.refused.is_empty()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace").to_owned()
}

fn check(root: &Path, update: bool) -> Result<Findings, String> {
    let mut findings = Findings::default();
    files::check(root, &mut findings)?;
    crates::check(root, &mut findings)?;
    words::check(root, &mut findings)?;
    defects::check(root, &mut findings)?;
    let mut graphs = BTreeMap::new();
    for name in CRATES {
        let modules = source::modules(&root.join("crates").join(name).join("src"))?;
        let (of, object, most) = ASSEMBLY;
        let methods = if name == of { arrows::method_count(&modules, object) } else { 0 };
        if methods >= most {
            let refused =
                format!("crates/{name}: {object} has {methods} methods; what it does belongs to a room of its own");
            findings.refused.push(refused);
        }
        graphs.insert(name, arrows::graph(&modules));
    }
    let (record, page) = (root.join(RECORD), root.join(PAGE));
    if update {
        let text = serde_json::to_string_pretty(&record_of(&graphs)).map_err(|error| error.to_string())?;
        write(&record, &format!("{text}\n"))?;
        write(&page, &with_graphs(&read(&page)?, &graphs)?)?;
        return Ok(findings);
    }
    let recorded: Value = serde_json::from_str(&read(&record)?).map_err(|error| format!("{RECORD}: {error}"))?;
    for (name, graph) in &graphs {
        findings.refused.extend(worse(name, graph, &recorded[*name]));
    }
    if with_graphs(&read(&page)?, &graphs)? != read(&page)? {
        findings.refused.push(format!("{PAGE} shows old arrows; run `UPDATE=1 cargo xtask tidy`"));
    }
    Ok(findings)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The cycles as they are now, to be allowed from now on.
fn record_of(graphs: &BTreeMap<&str, Graph>) -> Value {
    let cycles = |graph: &Graph| -> Vec<Value> {
        let found = graph.cycles().into_iter();
        found.map(|cycle| json!({ "arrows": graph.arrows_within(&cycle), "modules": cycle })).collect()
    };
    graphs
        .iter()
        .map(|(name, graph)| ((*name).to_owned(), json!(cycles(graph))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The cycles that are worse than the record allows.
fn worse(name: &str, graph: &Graph, recorded: &Value) -> Vec<String> {
    let allowed: Vec<(BTreeSet<String>, u64)> = recorded
        .as_array()
        .into_iter()
        .flatten()
        .map(|cycle| {
            let modules = cycle["modules"].as_array().into_iter().flatten();
            let modules = modules.filter_map(|module| Some(module.as_str()?.to_owned())).collect();
            (modules, cycle["arrows"].as_u64().unwrap_or(0))
        })
        .collect();
    let mut found = Vec::new();
    for cycle in graph.cycles() {
        let names = || cycle.iter().cloned().collect::<Vec<_>>().join(", ");
        let arrows = graph.arrows_within(&cycle);
        match allowed.iter().find(|(modules, _)| cycle.is_subset(modules)) {
            None => found.push(format!("crates/{name}: these modules use each other in a new cycle: {}", names())),
            Some((_, most)) if arrows as u64 > *most => {
                found.push(format!("crates/{name}: {arrows} arrows in a cycle that had {most}: {}", names()));
            }
            Some(_) => {}
        }
    }
    found
}

/// The page with the arrows of today.
fn with_graphs(page: &str, graphs: &BTreeMap<&str, Graph>) -> Result<String, String> {
    let missing = || format!("{PAGE} has no place for the arrows: {BEGIN}");
    let (before, rest) = page.split_once(BEGIN).ok_or_else(missing)?;
    let (_, after) = rest.split_once(END).ok_or_else(missing)?;
    let mut shown = String::new();
    for name in CRATES {
        let graph = &graphs[name];
        let cycles = graph.cycles();
        let in_cycle: BTreeSet<&String> = cycles.iter().flatten().collect();
        let sizes: Vec<String> = cycles.iter().map(|cycle| cycle.len().to_string()).collect();
        let summary = match sizes.is_empty() {
            true => "no cycle".to_owned(),
            false => format!("{} in a cycle, marked with *", sizes.join(" and ")),
        };
        let modules = graph.0.len();
        let _ = writeln!(shown, "`crates/{name}`: {modules} modules, {summary}.\n");
        for module in graph.bottom_up() {
            let mark = if in_cycle.contains(&module.to_owned()) { "*" } else { " " };
            let used: Vec<&str> = graph.0[module].iter().map(String::as_str).collect();
            let line = format!("   {mark}{module:<16} {}", used.join(" "));
            let _ = writeln!(shown, "{}", line.trim_end());
        }
        shown.push('\n');
    }
    Ok(format!("{before}{BEGIN}\n{shown}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(arrows: &[(&str, &[&str])]) -> Graph {
        let names = |used: &&[&str]| used.iter().map(|name| (*name).to_owned()).collect();
        Graph(arrows.iter().map(|(name, used)| ((*name).to_owned(), names(used))).collect())
    }

    #[test]
    fn a_recorded_cycle_may_shrink_and_nothing_else() {
        let whole = graph(&[("a", &["b"]), ("b", &["a", "c"]), ("c", &["a"])]);
        let recorded = record_of(&BTreeMap::from([("engine", whole)]));
        let smaller = graph(&[("a", &["b"]), ("b", &["a"]), ("c", &["a"])]);
        assert_eq!(worse("engine", &smaller, &recorded["engine"]), Vec::<String>::new());
        let denser = graph(&[("a", &["b", "c"]), ("b", &["a", "c"]), ("c", &["a"])]);
        assert_eq!(worse("engine", &denser, &recorded["engine"]).len(), 1);
        let wider = graph(&[("a", &["b"]), ("b", &["d"]), ("d", &["a"])]);
        assert_eq!(worse("engine", &wider, &recorded["engine"]).len(), 1);
        assert_eq!(worse("sdk", &smaller, &Value::Null).len(), 1);
    }
}
