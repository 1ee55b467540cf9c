//! A year of cron expressions in every zone whose clock changes, against what `cron_year.py` computed by another method.

use ff_core::schedule::Cron;
use sha2::{Digest, Sha256};

/// 2027-01-01 and 2028-01-01 in milliseconds since the epoch.
const YEAR: (i64, i64) = (1_798_761_600_000, 1_830_297_600_000);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_year_in_every_zone_with_changes_is_what_another_computation_says() {
    let mut zones = std::collections::BTreeSet::new();
    for line in include_str!("cron_year.txt").lines() {
        let [zone, expression, count, digest] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let cron = Cron::parse(expression, zone).unwrap_or_else(|error| panic!("{line}: {error:?}"));
        let instants: Vec<String> = std::iter::successors(cron.after(YEAR.0 - 1), |instant| cron.after(*instant))
            .take_while(|instant| *instant < YEAR.1)
            .map(|instant| instant.to_string())
            .collect();
        assert_eq!(instants.len().to_string(), count, "{line}");
        assert_eq!(hex(&Sha256::digest(instants.join(","))[..8]), digest, "{line}");
        zones.insert(zone);
    }
    assert!(zones.len() > 100, "{} zones", zones.len());
}

/// An instant as people write it, in milliseconds.
fn at(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

fn next(expression: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
    let cron = Cron::parse(expression, zone).unwrap();
    let instants = std::iter::successors(cron.after(at(from)), |instant| cron.after(*instant));
    instants.take(count).map(|instant| jiff::Timestamp::from_millisecond(instant).unwrap().to_string()).collect()
}

#[test]
fn a_fixed_hour_runs_once_a_day_however_the_clock_changes() {
    // 02:00 becomes 03:00: what is skipped runs at the end of the gap.
    assert_eq!(
        next("30 2 * * *", "Europe/Berlin", "2027-03-27T00:00:00Z", 3),
        ["2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"]
    );
    // 03:00 becomes 02:00: what is repeated runs the first time.
    assert_eq!(
        next("30 2 * * *", "Europe/Berlin", "2027-10-30T00:00:00Z", 3),
        ["2027-10-30T00:30:00Z", "2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"]
    );
    // From within the second half of the repeated hour.
    assert_eq!(next("30 2 * * *", "Europe/Berlin", "2027-10-31T01:10:00Z", 1), ["2027-11-01T01:30:00Z"]);
    // Several times of one gap are one instant.
    assert_eq!(
        next("0,15,45 2,3 * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", 3),
        ["2027-03-28T01:00:00Z", "2027-03-28T01:15:00Z", "2027-03-28T01:45:00Z"]
    );
}

#[test]
fn wildcard_hours_follow_elapsed_time() {
    assert_eq!(
        next("0 * * * *", "Europe/Berlin", "2027-10-30T23:30:00Z", 4),
        ["2027-10-31T00:00:00Z", "2027-10-31T01:00:00Z", "2027-10-31T02:00:00Z", "2027-10-31T03:00:00Z"]
    );
    assert_eq!(
        next("30 * * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", 3),
        ["2027-03-28T00:30:00Z", "2027-03-28T01:30:00Z", "2027-03-28T02:30:00Z"]
    );
    // A change by half an hour.
    assert_eq!(
        next("*/20 * * * *", "Australia/Lord_Howe", "2027-04-03T14:15:00Z", 4),
        ["2027-04-03T14:20:00Z", "2027-04-03T14:40:00Z", "2027-04-03T15:10:00Z", "2027-04-03T15:30:00Z"]
    );
}

#[test]
fn seconds_are_the_first_of_six_fields() {
    assert_eq!(
        next("*/20 0 12 * * *", "UTC", "2027-01-01T12:00:20.500Z", 2),
        ["2027-01-01T12:00:40Z", "2027-01-02T12:00:00Z"]
    );
    assert_eq!(next("0 0 29 2 *", "UTC", "2097-01-01T00:00:00Z", 1), ["2104-02-29T00:00:00Z"]);
}

#[test]
fn a_refusal_names_the_field_and_says_why() {
    let refused = |expression: &str, zone: &str| Cron::parse(expression, zone).err().expect("it is refused");
    for (expression, field) in [
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("0 9 32 * *", "day of month"),
        ("0 9 * 13 *", "month"),
        ("0 9 * * 8", "day of week"),
        ("61 0 9 * * *", "second"),
        ("x * * * *", "minute"),
    ] {
        let error = refused(expression, "UTC");
        assert_eq!(error.details["field"], "spec.cron", "{expression}: {error:?}");
        assert_eq!(error.details["cron_field"], field, "{expression}: {error:?}");
    }
    let checked = |expression: &str| match Cron::parse(expression, "UTC") {
        Ok(_) => Cron::check(expression),
        Err(error) => Err(error),
    };
    for (expression, field) in [
        ("1,,2 * * * *", "minute"),
        ("1, * * * *", "minute"),
        ("* ,1 * * *", "hour"),
        ("*/99 * * * *", "minute"),
        ("0 */25 * * *", "hour"),
        ("0 0 1-9/40 * *", "day of month"),
        ("0 0 * */13 *", "month"),
        ("*/0 * * * *", "minute"),
        ("*/x * * * *", "minute"),
        ("*/ * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("1- * * * *", "minute"),
        ("*/61 0 9 * * *", "second"),
    ] {
        let error = checked(expression).err().unwrap_or_else(|| panic!("{expression} is refused"));
        assert_eq!(error.details["field"], "spec.cron", "{expression}: {error:?}");
        assert_eq!(error.details["cron_field"], field, "{expression}: {error:?}");
    }
    for expression in
        ["*/60 * * * *", "0 */24 * * *", "1,2 * * * *", "0-30/5 9 L * MON-FRI", "0 9 * * 1#2", "0 22-23,0-3 * * *"]
    {
        assert!(checked(expression).is_ok(), "{expression}: {:?}", checked(expression));
    }
    for expression in ["0 0 31 2 *", "0 0 31 4,6,9,11 *"] {
        assert!(refused(expression, "UTC").detail.contains("never matches"), "{expression}");
    }
    for expression in ["", "* * * *", "* * * * * * *", "@daily", "0 0 30 2 *"] {
        assert_eq!(refused(expression, "UTC").details["field"], "spec.cron", "{expression}");
    }
    assert_eq!(refused("* * * * *", "Mars/Olympus").details["field"], "spec.time_zone");
}
