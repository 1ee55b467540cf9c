//! Graphs without cycles: the check of a whole graph that is created at once, and of one edge that is added to a
//! graph of any size. Both are exact and neither recurses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::error::{Code, Error, Result};
use crate::id::ExecutionId;
use crate::{limits, text};

/// Looks for the path that a new edge would close to a cycle. The caller reads the edges, in whatever portions suit
/// it: `while` [`CycleSearch::next_wanted`] names executions, give the downstreams of each to [`CycleSearch::expand`].
#[derive(Debug)]
pub struct CycleSearch {
    upstream: ExecutionId,
    frontier: VecDeque<ExecutionId>,
    /// Where the search came from, for everything it has seen.
    came_from: BTreeMap<ExecutionId, ExecutionId>,
}

impl CycleSearch {
    /// A search before an edge from `upstream` to `downstream` is added.
    pub fn new(upstream: ExecutionId, downstream: ExecutionId) -> Self {
        Self { upstream, frontier: VecDeque::from([downstream]), came_from: BTreeMap::from([(downstream, upstream)]) }
    }

    /// Up to `limit` executions whose downstreams are wanted next; empty when there is no cycle.
    pub fn next_wanted(&mut self, limit: usize) -> Vec<ExecutionId> {
        let count = limit.min(self.frontier.len());
        self.frontier.drain(..count).collect()
    }

    /// The downstreams of an execution; the error names the cycle when one of them is where the new edge begins.
    pub fn expand(&mut self, from: ExecutionId, downstreams: impl IntoIterator<Item = ExecutionId>) -> Result<()> {
        for downstream in downstreams {
            if downstream == self.upstream {
                return Err(cycle(&self.path_to(from)));
            }
            if let std::collections::btree_map::Entry::Vacant(unseen) = self.came_from.entry(downstream) {
                unseen.insert(from);
                self.frontier.push_back(downstream);
            }
        }
        Ok(())
    }

    /// From where the new edge begins, along it, to `last`, and back.
    fn path_to(&self, last: ExecutionId) -> Vec<ExecutionId> {
        let mut path = vec![self.upstream, last];
        let mut at = last;
        while let Some(&before) = self.came_from.get(&at) {
            path.push(before);
            if before == self.upstream {
                break;
            }
            at = before;
        }
        path.reverse();
        path
    }
}

/// Refuses an edge that would close a cycle, for callers that have all edges at hand.
pub fn check_no_cycle(
    upstream: ExecutionId,
    downstream: ExecutionId,
    mut downstreams: impl FnMut(&ExecutionId) -> Vec<ExecutionId>,
) -> Result<()> {
    if upstream == downstream {
        return Err(Error::of(Code::SelfReferencingEdge).with("execution_id", upstream));
    }
    let mut search = CycleSearch::new(upstream, downstream);
    while let [wanted] = search.next_wanted(1)[..] {
        search.expand(wanted, downstreams(&wanted))?;
    }
    Ok(())
}

/// Checks a whole graph of named nodes; answers its edges as positions in the list of nodes.
pub fn validate_graph(nodes: &[&str], edges: &[(&str, &str)]) -> Result<Vec<(usize, usize)>> {
    if nodes.len() > limits::GRAPH_NODES_MAX {
        return Err(text::too_many("nodes", nodes.len(), limits::GRAPH_NODES_MAX));
    }
    if edges.len() > limits::GRAPH_EDGES_MAX {
        return Err(text::too_many("edges", edges.len(), limits::GRAPH_EDGES_MAX));
    }
    let mut positions = BTreeMap::new();
    for (position, name) in nodes.iter().enumerate() {
        let field = format!("nodes[{position}].name");
        text::label(&field, name)?;
        if positions.insert(*name, position).is_some() {
            return Err(Error::invalid(&field, format!("repeats the name {name:?}")));
        }
    }
    let mut seen = BTreeSet::new();
    for (number, (upstream, downstream)) in edges.iter().enumerate() {
        let find = |end: &str, name: &str| {
            let unknown = || Error::invalid(&format!("edges[{number}].{end}"), format!("names no node: {name:?}"));
            positions.get(name).copied().ok_or_else(unknown)
        };
        let edge = (find("upstream", upstream)?, find("downstream", downstream)?);
        if edge.0 == edge.1 {
            let error = Error::of(Code::SelfReferencingEdge);
            return Err(error.with("field", format!("edges[{number}]")).with("node", upstream));
        }
        if !seen.insert(edge) {
            let detail = format!("repeats the edge from {upstream:?} to {downstream:?}");
            return Err(Error::invalid(&format!("edges[{number}]"), detail));
        }
    }
    match find_cycle(nodes.len(), &seen) {
        Some(path) => Err(cycle(&path.into_iter().map(|position| nodes[position]).collect::<Vec<_>>())),
        None => Ok(edges.iter().map(|(upstream, downstream)| (positions[upstream], positions[downstream])).collect()),
    }
}

/// Takes away nodes that nothing points to until none is left (Kahn); what remains has a cycle.
fn find_cycle(nodes: usize, edges: &BTreeSet<(usize, usize)>) -> Option<Vec<usize>> {
    let mut incoming = vec![0usize; nodes];
    for &(_, downstream) in edges {
        incoming[downstream] += 1;
    }
    let mut free: Vec<usize> = (0..nodes).filter(|&node| incoming[node] == 0).collect();
    while let Some(node) = free.pop() {
        for &(_, downstream) in edges.range((node, 0)..=(node, usize::MAX)) {
            incoming[downstream] -= 1;
            if incoming[downstream] == 0 {
                free.push(downstream);
            }
        }
    }
    // Every node that remains has an upstream that remains, so walking upstream must meet itself.
    let mut before = BTreeMap::new();
    for &(upstream, downstream) in edges.iter().filter(|edge| incoming[edge.0] > 0 && incoming[edge.1] > 0) {
        before.insert(downstream, upstream);
    }
    let mut walked = vec![*before.keys().next()?];
    loop {
        let next = *before.get(walked.last()?)?;
        let met = walked.iter().position(|&node| node == next);
        walked.push(next);
        if let Some(start) = met {
            return Some(walked[start..].iter().rev().copied().collect());
        }
    }
}

fn cycle<T: serde::Serialize + std::fmt::Display>(path: &[T]) -> Error {
    const SHOWN: usize = 20;
    let mut names: Vec<String> = path.iter().take(SHOWN).map(ToString::to_string).collect();
    if path.len() > SHOWN {
        names.push(format!("and {} more", path.len() - SHOWN));
    }
    Error::new(Code::CycleDetected, format!("closes the cycle {}", names.join(" → "))).with("path", path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn execution(number: usize) -> ExecutionId {
        ExecutionId { partition: 0, uuid: Uuid::from_u128(u128::try_from(number).unwrap()) }
    }

    fn add(edges: &[(usize, usize)], new: (usize, usize)) -> Result<()> {
        check_no_cycle(execution(new.0), execution(new.1), |from| {
            edges.iter().filter(|edge| execution(edge.0) == *from).map(|edge| execution(edge.1)).collect()
        })
    }

    #[test]
    fn the_edge_that_closes_a_cycle_is_refused_with_its_path() {
        let edges = [(1, 2), (2, 3), (1, 3), (3, 4)];
        add(&edges, (1, 4)).unwrap();
        add(&edges, (4, 5)).unwrap();
        let error = add(&edges, (4, 1)).unwrap_err();
        assert_eq!(error.code, Code::CycleDetected);
        let path = [4, 1, 3, 4].map(|number| execution(number).to_string());
        assert_eq!(error.details["path"], serde_json::json!(path));
        let direct = add(&edges, (2, 1)).unwrap_err();
        assert_eq!(direct.details["path"], serde_json::json!([2, 1, 2].map(|number| execution(number).to_string())));
        assert_eq!(add(&edges, (7, 7)).unwrap_err().code, Code::SelfReferencingEdge);
    }

    #[test]
    fn a_chain_as_long_as_a_flow_is_searched_to_its_end() {
        let last = usize::try_from(limits::FLOW_MEMBERS_MAX).unwrap();
        let next = |from: &ExecutionId| {
            let number = usize::try_from(from.uuid.as_u128()).unwrap();
            if number < last { vec![execution(number + 1)] } else { vec![] }
        };
        let error = check_no_cycle(execution(last), execution(1), next).unwrap_err();
        assert_eq!(error.details["path"].as_array().unwrap().len(), last + 1);
        assert!(error.detail.len() < 2_000, "people read the beginning");
        check_no_cycle(execution(1), execution(last), next).unwrap();
    }

    #[test]
    fn good_graphs_come_back_as_positions() {
        let edges = validate_graph(&["a", "b", "c"], &[("a", "c"), ("b", "c"), ("a", "b")]).unwrap();
        assert_eq!(edges, [(0, 2), (1, 2), (0, 1)]);
        assert_eq!(validate_graph(&[], &[]).unwrap(), []);
    }

    #[test]
    fn bad_graphs_are_refused_where_they_are_bad() {
        let field = |nodes: &[&str], edges: &[(&str, &str)]| {
            validate_graph(nodes, edges).unwrap_err().details["field"].as_str().unwrap().to_owned()
        };
        assert_eq!(field(&["a", ""], &[]), "nodes[1].name");
        assert_eq!(field(&["a", "b", "a"], &[]), "nodes[2].name");
        assert_eq!(field(&["a", "b"], &[("a", "b"), ("x", "b")]), "edges[1].upstream");
        assert_eq!(field(&["a", "b"], &[("a", "y")]), "edges[0].downstream");
        assert_eq!(field(&["a", "b"], &[("a", "b"), ("a", "b")]), "edges[1]");
        let error = validate_graph(&["a"], &[("a", "a")]).unwrap_err();
        assert_eq!((error.code, &error.details["field"]), (Code::SelfReferencingEdge, &"edges[0]".into()));
    }

    #[test]
    fn a_cycle_is_named_without_what_leads_to_it_or_away() {
        let edges = [("in", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "out")];
        let error = validate_graph(&["in", "a", "b", "c", "out"], &edges).unwrap_err();
        assert_eq!(error.code, Code::CycleDetected);
        let path: Vec<&str> =
            error.details["path"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        assert_eq!((path.len(), path[0]), (4, path[3]));
        assert!(path.windows(2).all(|pair| edges.contains(&(pair[0], pair[1]))), "{path:?}");
    }

    #[test]
    fn graphs_hold_at_their_limits_and_not_past_them() {
        let names: Vec<String> = (0..=limits::GRAPH_NODES_MAX).map(|number| format!("n{number}")).collect();
        let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
        let most = &nodes[..limits::GRAPH_NODES_MAX];
        let refused = |nodes: &[&str], edges: &[(&str, &str)]| {
            validate_graph(nodes, edges).unwrap_err().details["field"].as_str().unwrap().to_owned()
        };
        assert_eq!(refused(&nodes, &[]), "nodes");
        let pairs = (0..most.len()).flat_map(|from| (from + 1..most.len()).map(move |to| (from, to)));
        let edges: Vec<(&str, &str)> =
            pairs.take(limits::GRAPH_EDGES_MAX + 1).map(|(from, to)| (most[from], most[to])).collect();
        assert_eq!(validate_graph(most, &edges[..limits::GRAPH_EDGES_MAX]).unwrap().len(), limits::GRAPH_EDGES_MAX);
        assert_eq!(refused(most, &edges), "edges");
    }

    /// Whether a graph has a cycle, by following edges from everywhere to everywhere.
    fn has_cycle(nodes: usize, edges: &[(usize, usize)]) -> bool {
        let mut reach = vec![vec![false; nodes]; nodes];
        for &(from, to) in edges {
            reach[from][to] = true;
        }
        for via in 0..nodes {
            for from in 0..nodes {
                for to in 0..nodes {
                    reach[from][to] |= reach[from][via] && reach[via][to];
                }
            }
        }
        (0..nodes).any(|node| reach[node][node])
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn a_graph_is_refused_if_and_only_if_it_has_a_cycle(
            edges in proptest::collection::btree_set((0..6usize, 0..6usize), 0..12)
        ) {
            let names = ["a", "b", "c", "d", "e", "f"];
            let edges: Vec<(usize, usize)> = edges.into_iter().filter(|(from, to)| from != to).collect();
            let named: Vec<(&str, &str)> = edges.iter().map(|&(from, to)| (names[from], names[to])).collect();
            let result = validate_graph(&names, &named);
            prop_assert_eq!(result.is_err(), has_cycle(6, &edges));
            if let Err(error) = result {
                let path: Vec<&str> =
                    error.details["path"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
                prop_assert!(path.len() > 2 && path.first() == path.last());
                prop_assert!(path.windows(2).all(|pair| named.contains(&(pair[0], pair[1]))));
            }
        }

        #[test]
        fn edges_added_one_by_one_never_make_a_cycle(
            edges in proptest::collection::vec((0..6usize, 0..6usize), 0..16)
        ) {
            let mut kept: Vec<(usize, usize)> = Vec::new();
            for edge in edges.into_iter().filter(|(from, to)| from != to) {
                let mut with = kept.clone();
                with.push(edge);
                let refused = add(&kept, edge).is_err();
                prop_assert_eq!(refused, has_cycle(6, &with));
                if !refused {
                    kept = with;
                }
            }
        }
    }
}
