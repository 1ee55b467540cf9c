//! A reader of the text format of Prometheus, strict where scrapers are.

use std::collections::BTreeMap;

/// Checks a page: every sample belongs to a family declared before it, families are declared once, and histograms are
/// cumulative and end with all.
pub(crate) fn check(page: &str) {
    assert!(page.ends_with('\n'));
    let mut families: BTreeMap<String, String> = BTreeMap::new();
    let mut buckets: BTreeMap<String, f64> = BTreeMap::new();
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
        if name.ends_with("_bucket") {
            let last = buckets.insert(name.into(), value);
            assert!(last.is_none_or(|last| last <= value), "{line} is not cumulative");
        }
        if let (Some(family), true) = (family, name.ends_with("_count")) {
            assert_eq!(buckets.get(&format!("{family}_bucket")), Some(&value), "{line}");
        }
        if series.contains('{') {
            assert!(series.ends_with("\"}"), "{line}");
        }
        samples += 1;
    }
    assert!(samples > 20, "{page}");
}
