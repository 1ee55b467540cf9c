//! Spans of time and instants, as people write and read them.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Units from the longest to the shortest, in milliseconds.
const UNITS: [(&str, i64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a span such as `500ms`, `30s`, `5m`, `2h`, `1d` or `1h30m`, in milliseconds.
pub(crate) fn parse(text: &str) -> Result<i64, String> {
    let wrong = || format!("{text:?} is no span of time such as 500ms, 30s, 5m, 2h, 1d or 1h30m");
    let mut rest = text;
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: i64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[..letters]).ok_or_else(wrong)?;
        total = number.checked_mul(*unit).and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
        rest = &rest[letters..];
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// Reads an instant: RFC 3339, or a span from now (`10m`). In milliseconds since the epoch.
pub(crate) fn parse_instant(text: &str) -> Result<i64, String> {
    if let Ok(instant) = OffsetDateTime::parse(text, &Rfc3339) {
        return i64::try_from(instant.unix_timestamp_nanos() / 1_000_000)
            .map_err(|_| format!("{text:?} is too far away"));
    }
    let span =
        parse(text).map_err(|_| format!("{text:?} is neither an instant (RFC 3339) nor a span of time from now"))?;
    now_ms().checked_add(span).ok_or_else(|| format!("{text:?} is too far away"))
}

/// Reads an instant in the past: RFC 3339, or a span before now (`10m`).
pub(crate) fn parse_past(text: &str) -> Result<i64, String> {
    match parse(text) {
        Ok(span) => Ok(now_ms().saturating_sub(span)),
        Err(_) => parse_instant(text),
    }
}

/// This machine's clock.
pub(crate) fn now_ms() -> i64 {
    i64::try_from(OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// An instant in RFC 3339, to the second.
pub(crate) fn instant(at_ms: i64) -> String {
    let formatted =
        OffsetDateTime::from_unix_timestamp(at_ms.div_euclid(1_000)).map(|instant| instant.format(&Rfc3339));
    match formatted {
        Ok(Ok(text)) => text,
        _ => format!("{at_ms} ms"),
    }
}

/// A span with its two largest units: `350ms`, `2.5s`, `3m20s`, `1d4h`.
pub(crate) fn show(span_ms: i64) -> String {
    if span_ms < 1_000 {
        return format!("{span_ms}ms");
    }
    if span_ms < 60_000 {
        let (seconds, tenths) = (span_ms / 1_000, span_ms % 1_000 / 100);
        return if tenths == 0 { format!("{seconds}s") } else { format!("{seconds}.{tenths}s") };
    }
    let mut text = String::new();
    let mut rest = span_ms;
    for (name, unit) in UNITS.iter().take(4).skip_while(|(_, unit)| span_ms < *unit).take(2) {
        if rest >= *unit {
            text.push_str(&format!("{}{name}", rest / unit));
        }
        rest %= unit;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_their_units_and_nothing_else_is() {
        assert_eq!(parse("500ms"), Ok(500));
        assert_eq!(parse("1h30m"), Ok(5_400_000));
        assert_eq!(parse("2d"), Ok(172_800_000));
        for wrong in ["", "5", "m", "1x", "-1s", "1s ", "99999999999999999999s", "9223372036854775807d"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_are_shown_with_two_units() {
        for (ms, text) in [(0, "0ms"), (350, "350ms"), (1_000, "1s"), (2_540, "2.5s"), (200_000, "3m20s")] {
            assert_eq!(show(ms), text);
        }
        assert_eq!(show(100_800_000), "1d4h");
        assert_eq!(show(3_600_000), "1h");
    }

    #[test]
    fn instants_are_read_and_written_in_rfc_3339() {
        assert_eq!(parse_instant("2026-03-01T12:00:00Z"), Ok(1_772_366_400_000));
        assert_eq!(instant(1_772_366_400_999), "2026-03-01T12:00:00Z");
        assert!(parse_instant("tomorrow").unwrap_err().contains("tomorrow"));
        let before = now_ms();
        assert!(parse_instant("1h").unwrap() >= before + 3_600_000);
        assert!(parse_past("1h").unwrap() <= now_ms() - 3_600_000);
    }
}
