//! Which top module of a crate uses which: by paths (`crate::x`, `super::x`), by what `lib.rs` re-exports, and by methods
//! of a type whose `impl` blocks stand in several modules. The name of what a method is called on tells its type: it is a
//! type's own name, or that of a field or parameter that has one type everywhere.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Modules, words};

/// Types around the one whose methods are called.
const WRAPPERS: [&str; 4] = ["Arc", "Box", "Option", "Weak"];

/// The arrows of a crate: each module with those it uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Graph(pub(super) BTreeMap<String, BTreeSet<String>>);

/// Computes the arrows between the modules of a crate. `lib.rs` only puts them together and has none.
pub(super) fn graph(modules: &Modules) -> Graph {
    let names: BTreeSet<&str> = modules.keys().map(String::as_str).filter(|name| *name != "lib").collect();
    let exported = modules.get("lib").map(|files| exports(files.iter().map(|file| file.text.as_str()), &names));
    let exported = exported.unwrap_or_default();
    let methods = methods(modules);
    let receivers = receivers(modules);
    let mut graph = Graph::default();
    for (module, files) in modules.iter().filter(|(name, _)| *name != "lib") {
        let used = graph.0.entry(module.clone()).or_default();
        for file in files {
            let words = words(&file.text);
            for name in roots(&words, file.depth) {
                let target = names.get(name).copied().or_else(|| exported.get(name).map(String::as_str));
                used.extend(target.map(str::to_owned));
            }
            used.extend(calls(&words, &methods, &receivers).map(str::to_owned));
        }
        used.remove(module);
    }
    graph
}

/// The names that follow the crate's root: in `crate::name`, in `crate::{one, two::three}`, and behind enough `super`.
fn roots<'a>(words: &[&'a str], depth: usize) -> Vec<&'a str> {
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let start = match *word {
            "crate" if words.get(at + 1) == Some(&"::") => at + 2,
            // The first of several: it must lead to the root.
            "super" if at == 0 || words[at - 1] != "::" => {
                let path = words[at..].chunks(2).take_while(|pair| *pair == ["super", "::"]).count();
                if path != depth {
                    continue;
                }
                at + 2 * path
            }
            _ => continue,
        };
        match words.get(start) {
            Some(&"{") => found.extend(heads(&words[start + 1..])),
            Some(name) => found.push(*name),
            None => {}
        }
    }
    found
}

/// The first names of the members of a group, up to its closing brace.
fn heads<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let (mut open, mut found, mut first) = (1, Vec::new(), true);
    for word in words {
        match *word {
            "{" => open += 1,
            "}" => open -= 1,
            "," if open == 1 => first = true,
            name if open == 1 && first => {
                found.push(name);
                first = false;
            }
            _ => {}
        }
        if open == 0 {
            break;
        }
    }
    found
}

/// The names that `lib.rs` re-exports, with the module each comes from.
fn exports<'a>(texts: impl Iterator<Item = &'a str>, names: &BTreeSet<&str>) -> BTreeMap<String, String> {
    let mut exported = BTreeMap::new();
    for text in texts {
        let words = words(text);
        for (at, _) in words.iter().enumerate().filter(|(_, word)| **word == "use") {
            let Some(module) = words.get(at + 1).filter(|name| names.contains(**name)) else { continue };
            let statement = words[at + 2..].iter().take_while(|word| **word != ";");
            let items = statement.filter(|word| word.starts_with(|letter: char| letter.is_uppercase()));
            exported.extend(items.map(|item| ((*item).to_owned(), (*module).to_owned())));
        }
    }
    exported
}

/// Methods that belong to one module, although their type has some in others, too: by receiver and name.
fn methods(modules: &Modules) -> BTreeMap<(String, String), String> {
    let mut defined: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for (module, files) in modules {
        for file in files {
            let mut of = String::new();
            let words = words(&file.text);
            for (at, word) in words.iter().enumerate() {
                match *word {
                    "impl" => of = inherent(&words[at + 1..]).unwrap_or_default(),
                    "fn" => {
                        let name = words.get(at + 1).copied().unwrap_or_default();
                        defined.entry(name.to_owned()).or_default().insert((of.clone(), module.clone()));
                    }
                    _ => {}
                }
            }
        }
    }
    // A name that several types have says nothing about whose it is.
    let single = defined.into_iter().filter_map(|(name, places)| match places.first() {
        Some((of, module)) if places.len() == 1 && !of.is_empty() => Some(((of.to_lowercase(), name), module.clone())),
        _ => None,
    });
    single.collect()
}

/// How many methods the `impl` blocks of a type have, in all modules together.
pub(super) fn method_count(modules: &Modules, of: &str) -> usize {
    let mut count = 0;
    for file in modules.values().flatten() {
        let words = words(&file.text);
        let mut inside = false;
        for (at, word) in words.iter().enumerate() {
            match *word {
                "impl" => inside = inherent(&words[at + 1..]).is_some_and(|name| name == of),
                "struct" | "enum" | "trait" => inside = false,
                "fn" if inside && !matches!(words.get(at + 1), Some(&"(")) => count += 1,
                _ => {}
            }
        }
    }
    count
}

/// The type of an `impl` block that implements no trait.
fn inherent(words: &[&str]) -> Option<String> {
    let head: Vec<&str> = words.iter().take_while(|word| **word != "{").copied().collect();
    let name = head.iter().find(|word| word.starts_with(|letter: char| letter.is_uppercase()))?;
    (!head.contains(&"for")).then(|| (*name).to_owned())
}

/// The types of fields and parameters, in lower case, by names that have one type everywhere in the crate.
fn receivers(modules: &Modules) -> BTreeMap<String, String> {
    let mut declared: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for file in modules.values().flatten() {
        let words = words(&file.text);
        for (at, name) in words.iter().enumerate().filter(|(at, _)| words.get(at + 1) == Some(&":")) {
            let of = words[at + 2..].iter().take_while(|word| !matches!(**word, "," | ")" | "}" | ";" | "=" | "{"));
            let mut of = of.filter(|word| word.starts_with(|letter: char| letter.is_uppercase()));
            if let Some(of) = of.find(|of| !WRAPPERS.contains(of)) {
                declared.entry(name).or_default().insert(of.to_lowercase());
            }
        }
    }
    let single = declared.into_iter().filter(|(_, of)| of.len() == 1);
    single.filter_map(|(name, of)| Some((name.to_owned(), of.into_iter().next()?))).collect()
}

/// The modules whose methods are called, on `self`, on something of a known type, or on what is named for the type.
fn calls<'a>(
    words: &'a [&'a str],
    methods: &'a BTreeMap<(String, String), String>,
    receivers: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = &'a str> + 'a {
    let types: BTreeSet<&str> = methods.keys().map(|(of, _)| of.as_str()).collect();
    words.windows(4).flat_map(move |four| {
        let [receiver, ".", name, "(" | "::"] = four else { return Vec::new() };
        let of: Vec<&str> = match *receiver {
            "self" => types.iter().copied().collect(),
            named => {
                let declared = receivers.get(named).and_then(|of| types.get(of.as_str()));
                declared.or(types.get(named)).copied().into_iter().collect()
            }
        };
        of.into_iter()
            .filter_map(|of| methods.get(&(of.to_owned(), (*name).to_owned())))
            .map(String::as_str)
            .collect::<Vec<_>>()
    })
}

impl Graph {
    /// The cycles: groups of modules each of which reaches all the others. Larger ones first.
    pub(super) fn cycles(&self) -> Vec<BTreeSet<String>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.0.keys().map(|name| (name.as_str(), self.reach(name))).collect();
        let mut cycles: Vec<BTreeSet<String>> = Vec::new();
        for (name, reach) in &reached {
            let back = |other: &&&str| reached.get(**other).is_some_and(|reach| reach.contains(name));
            let mut cycle: BTreeSet<String> = reach.iter().filter(back).map(|other| (*other).to_owned()).collect();
            if cycle.len() > 1 {
                cycle.insert((*name).to_owned());
                if !cycles.contains(&cycle) {
                    cycles.push(cycle);
                }
            }
        }
        cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
        cycles
    }

    /// How many arrows stay inside a group.
    pub(super) fn arrows_within(&self, group: &BTreeSet<String>) -> usize {
        let inner = self.0.iter().filter(|(name, _)| group.contains(*name));
        inner.map(|(_, used)| used.intersection(group).count()).sum()
    }

    /// The modules from the bottom up: what uses nothing comes first, a cycle stands together.
    pub(super) fn bottom_up(&self) -> Vec<&str> {
        let mut order: Vec<&str> = self.0.keys().map(String::as_str).collect();
        order.sort_by_key(|name| (self.reach(name).len(), *name));
        order
    }

    fn reach(&self, from: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut waiting: Vec<&str> = vec![from];
        while let Some(name) = waiting.pop() {
            for used in self.0.get(name).into_iter().flatten() {
                if reached.insert(used.as_str()) {
                    waiting.push(used);
                }
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::File;
    use super::*;

    fn of(files: &[(&str, usize, &str)]) -> Graph {
        let mut modules = Modules::new();
        for (module, depth, text) in files {
            let file = File { depth: *depth, text: (*text).to_owned() };
            modules.entry((*module).to_owned()).or_default().push(file);
        }
        graph(&modules)
    }

    fn uses(graph: &Graph, module: &str) -> Vec<String> {
        graph.0[module].iter().cloned().collect()
    }

    #[test]
    fn paths_groups_and_parents_are_arrows() {
        let graph = of(&[
            ("a", 1, "use crate::{b::{X, Y}, c}; super::d::f()"),
            ("b", 2, "use super::inner; super::super::c::g()"),
            ("c", 1, ""),
            ("d", 1, "crate::Z"),
            ("lib", 1, "pub use c::{Z};"),
        ]);
        assert_eq!(uses(&graph, "a"), ["b", "c", "d"]);
        assert_eq!(uses(&graph, "b"), ["c"]);
        assert_eq!(uses(&graph, "d"), ["c"]);
    }

    #[test]
    fn a_method_of_another_modules_impl_block_is_an_arrow() {
        let graph = of(&[
            ("a", 1, "impl Engine { fn one(&self) { self.two() } }"),
            ("b", 1, "impl Engine { fn two(&self) {} fn read(&self) {} }"),
            ("c", 1, "fn f(engine: &Engine) { engine.one(); engine.read(); } impl Other { fn read(&self) {} }"),
        ]);
        assert_eq!(uses(&graph, "a"), ["b"]);
        assert_eq!(uses(&graph, "c"), ["a"], "two types have a `read`, so it tells nothing");
    }

    #[test]
    fn methods_of_a_type_are_counted_over_all_modules_and_without_those_of_traits() {
        let file = |text: &str| File { depth: 1, text: text.to_owned() };
        let one = file("impl Engine { fn a(&self) {} fn b(&self) {} } impl Debug for Engine { fn fmt(&self) {} }");
        let other = file("impl Engine { fn c(&self) {} } struct X; impl X { fn d(&self) {} }");
        let modules = Modules::from([("one".to_owned(), vec![one]), ("other".to_owned(), vec![other])]);
        assert_eq!(method_count(&modules, "Engine"), 3);
    }

    #[test]
    fn a_method_of_a_field_is_an_arrow_to_where_it_stands() {
        let graph = of(&[
            (
                "a",
                1,
                "struct A { books: Arc<Library>, pages: Vec<u8> } impl A { fn f(&self) { self.books.lend::<u8>(1) } }",
            ),
            ("b", 1, "pub struct Library; impl Library { fn read(&self) {} }"),
            ("c", 1, "impl Library { fn lend(&self) {} }"),
        ]);
        assert_eq!(uses(&graph, "a"), ["c"]);
    }

    #[test]
    fn a_cycle_is_found_whole_and_what_is_beside_it_is_not() {
        let graph = of(&[("a", 1, "crate::b"), ("b", 1, "crate::c"), ("c", 1, "crate::a crate::d"), ("d", 1, "")]);
        let cycles = graph.cycles();
        assert_eq!(cycles, [BTreeSet::from(["a".to_owned(), "b".to_owned(), "c".to_owned()])]);
        assert_eq!(graph.arrows_within(&cycles[0]), 3);
        assert_eq!(graph.bottom_up()[0], "d");
    }
}
