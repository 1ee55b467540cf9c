//! A reader of the text format of Prometheus, strict where scrapers are.

use std::collections::{BTreeMap, BTreeSet};

/// Checks a page: every sample belongs to a family declared before it, families are declared once, and histograms are
/// cumulative and end with all.
pub(crate) fn check(page: &str) {
    assert!(page.ends_with('\n'));
    let mut families: BTreeMap<String, String> = BTreeMap::new();
    let mut buckets: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut samples = 0;
    for line in page.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(families.insert(name.into(), kind.into()).is_none(), "{name} is declared twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        let name = series.split('{').next().unwrap();
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(name.chars().all(legal), "{line}");
        let part = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        let family = part.filter(|family| families.get(*family).is_some_and(|kind| kind == "histogram"));
        assert!(families.contains_key(family.unwrap_or(name)), "{line} belongs to no family");
        let labels = labels(series.strip_prefix(name).unwrap());
        assert!(seen.insert(series.to_owned()), "{line} stands twice");
        let others: Vec<&(String, String)> = labels.iter().filter(|(label, _)| label != "le").collect();
        let of = |family: &str| format!("{family} {others:?}");
        if let (Some(family), true) = (family, name.ends_with("_bucket")) {
            let bound = labels.iter().find(|(label, _)| label == "le").map(|(_, bound)| bound.as_str()).unwrap();
            let bound: f64 = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
            let last = buckets.insert(of(family), (bound, value));
            assert!(last.is_none_or(|last| last.0 < bound && last.1 <= value), "{line} is not cumulative");
        }
        if let (Some(family), true) = (family, name.ends_with("_count")) {
            assert_eq!(buckets.get(&of(family)), Some(&(f64::INFINITY, value)), "{line}");
        }
        samples += 1;
    }
    assert!(samples > 20, "{page}");
}

/// The labels in braces; each is a name, an equals sign and a quoted text.
fn labels(text: &str) -> Vec<(String, String)> {
    let Some(inside) = text.strip_prefix('{').map(|text| text.strip_suffix('}').unwrap()) else {
        assert_eq!(text, "");
        return Vec::new();
    };
    let mut labels = Vec::new();
    let mut rest = inside;
    while !rest.is_empty() {
        let (name, quoted) = rest.split_once("=\"").unwrap();
        assert!(name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'), "{inside}");
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next().expect("the quote is closed") {
                (at, '"') => break at,
                (_, '\\') => match characters.next().unwrap().1 {
                    'n' => value.push('\n'),
                    escaped @ ('\\' | '"') => value.push(escaped),
                    other => panic!("\\{other} is no escape"),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &quoted[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    labels
}

#[tokio::test]
async fn an_embedder_gets_what_the_page_shows_as_values() {
    let server = crate::support::Running::start(crate::support::settings()).await;
    let client = server.client();
    client.post("/v1/executions", &serde_json::json!({ "kind": "k", "lane": "a\"b\\c" })).await.ok();
    client.post("/v1/workers/w/claim", &serde_json::json!({ "lanes": ["none"] })).await;
    let families = server.observer.families().await;
    let page = ff_server::metrics::render(&families);
    check(&page);
    assert!(page.contains("flowfabric_claim_seconds_count{lane=\"none\",exit=\"empty\"} 1\n"), "{page}");
    let scraped = client.get("/metrics").await;
    check(std::str::from_utf8(&scraped.body).unwrap());
    for family in &families {
        let declared = format!("# TYPE {} {}\n", family.name, family.kind.as_str());
        assert!(std::str::from_utf8(&scraped.body).unwrap().contains(&declared), "{declared}");
    }
    server.stop().await;
}
