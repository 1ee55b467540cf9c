//! Cron expressions in time zones. `croner` reads an expression and walks the wall clock; `jiff` knows the zones. The
//! meaning of a change of the clock is decided here:
//!
//! * **Fixed hours** (`30 2 * * *`) mean a time of day. A time that the zone skips runs at the end of the gap, a repeated
//!   one at its first occurrence.
//! * **Wildcard hours** (`*/15 * * * *`, an hour field that begins with a star) follow elapsed time: every instant whose wall
//!   clock matches counts, so that both halves of a repeated hour run, and a skipped hour does not.

use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

use crate::error::{Error, Result};

/// The zone of expressions that name none.
pub const DEFAULT_TIME_ZONE: &str = "UTC";
/// Longest cron expression.
pub const CRON_MAX_BYTES: usize = 256;
/// Changes of the clock that one search goes through: no zone has more than six in a year, and no expression that matches
/// at all is further than nine years away.
const SEGMENTS_MAX: usize = 64;

/// A field of an expression.
struct Field {
    name: &'static str,
    /// The values it may have, for people.
    range: &'static str,
    /// How many there are.
    count: u32,
}

/// The fields, the seconds first; an expression of five fields has none of these.
const FIELDS: [Field; 6] = [
    Field { name: "second", range: "0-59", count: 60 },
    Field { name: "minute", range: "0-59", count: 60 },
    Field { name: "hour", range: "0-23", count: 24 },
    Field { name: "day of month", range: "1-31", count: 31 },
    Field { name: "month", range: "1-12 or JAN-DEC", count: 12 },
    Field { name: "day of week", range: "0-7 or SUN-SAT", count: 7 },
];

/// A cron expression in its zone.
pub struct Cron {
    pattern: croner::Cron,
    zone: TimeZone,
    wildcard_hours: bool,
}

impl Cron {
    /// Reads an expression of five fields, or of six with the seconds first. A refusal names the field that is wrong.
    pub fn parse(expression: &str, time_zone: &str) -> Result<Self> {
        let zone = TimeZoneDatabase::bundled().get(time_zone).map_err(|_| {
            let detail = format!("{time_zone:?} is not a time zone; write one such as Europe/Berlin or UTC");
            Error::invalid("spec.time_zone", detail)
        })?;
        let fields: Vec<&str> = expression.split_whitespace().collect();
        if expression.len() > CRON_MAX_BYTES {
            return Err(refused(format!("has {} bytes, the limit is {CRON_MAX_BYTES}", expression.len())));
        }
        let known = fields_of(&fields)?;
        let pattern =
            read(&fields.join(" ")).map_err(|why| guilty_field(&fields, known).unwrap_or_else(|| refused(why)))?;
        let hour = fields[fields.len() - 4];
        let cron = Self { pattern, zone, wildcard_hours: hour.starts_with('*') };
        // Any start will do: what matches at all does so within nine years.
        let start = DateTime::constant(2024, 1, 1, 0, 0, 0, 0);
        if cron.next_on_the_wall(start, true).is_none_or(|found| found.year() > start.year() + 9) {
            return Err(refused("never matches: no date is like this"));
        }
        Ok(cron)
    }

    /// Refuses parts of an expression that can be read and cannot be meant: empty items of a list, and steps that are
    /// longer than their field. Only new expressions are looked at, so that schedules which have one go on.
    pub fn check(expression: &str) -> Result<()> {
        let fields: Vec<&str> = expression.split_whitespace().collect();
        for (text, field) in fields.iter().zip(fields_of(&fields)?) {
            for item in text.split(',') {
                field.check_item(item).map_err(|why| field.refused(text, &why))?;
            }
        }
        Ok(())
    }

    /// The first instant behind this one, in milliseconds since the epoch.
    pub fn after(&self, instant: i64) -> Option<i64> {
        let from = Timestamp::from_millisecond(instant).ok()?;
        let found = if self.wildcard_hours { self.elapsed_after(from) } else { self.fixed_after(from) };
        found.map(Timestamp::as_millisecond)
    }

    /// Every instant whose wall clock matches, one stretch of an unchanged offset after the other.
    fn elapsed_after(&self, from: Timestamp) -> Option<Timestamp> {
        let mut start = self.zone.to_datetime(from);
        let mut inclusive = false;
        let mut offset = self.zone.to_offset(from);
        let mut changes = self.zone.following(from);
        for _ in 0..SEGMENTS_MAX {
            let wall = self.next_on_the_wall(start, inclusive)?;
            let found = on(wall, offset)?;
            let Some(change) = changes.next() else { return Some(found) };
            if found < change.timestamp() {
                return Some(found);
            }
            offset = change.offset();
            start = offset.to_datetime(change.timestamp());
            inclusive = true;
        }
        None
    }

    /// The first time of day behind this instant; each happens once. As the wall clock goes on, the instants never go back.
    fn fixed_after(&self, from: Timestamp) -> Option<Timestamp> {
        let mut start = self.zone.to_datetime(from);
        let mut inclusive = false;
        if let AmbiguousOffset::Fold { before, after } = self.zone.to_ambiguous_timestamp(start).offset()
            && self.zone.to_offset(from) == after
        {
            // The second half of a repeated stretch: everything in it has happened in the first half.
            let change = self.zone.preceding(from.checked_add(SignedDuration::from_nanos(1)).ok()?).next()?;
            start = before.to_datetime(change.timestamp());
            inclusive = true;
        }
        // Several times of one gap are the same instant, so that one or another is not behind it.
        loop {
            let wall = self.next_on_the_wall(start, inclusive)?;
            let found = self.instant_of(wall)?;
            if found > from {
                return Some(found);
            }
            (start, inclusive) = (wall, false);
        }
    }

    /// When it is this time of day: the first time that it is, or the end of the gap that it falls into.
    fn instant_of(&self, wall: DateTime) -> Option<Timestamp> {
        match self.zone.to_ambiguous_timestamp(wall).offset() {
            AmbiguousOffset::Unambiguous { offset } => on(wall, offset),
            AmbiguousOffset::Fold { before, .. } => on(wall, before),
            AmbiguousOffset::Gap { before, .. } => {
                let behind = on(wall, before)?.checked_add(SignedDuration::from_nanos(1)).ok()?;
                self.zone.preceding(behind).next().map(|change| change.timestamp())
            }
        }
    }

    fn next_on_the_wall(&self, start: DateTime, inclusive: bool) -> Option<DateTime> {
        // Part of a second that has begun is behind its beginning.
        let whole = start.with().subsec_nanosecond(0).build().ok()?;
        self.pattern.find_next_occurrence(&whole, inclusive && whole == start).ok()
    }
}

fn on(wall: DateTime, offset: Offset) -> Option<Timestamp> {
    offset.to_timestamp(wall).ok()
}

fn read(expression: &str) -> Result<croner::Cron, String> {
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(expression).map_err(|error| error.to_string())
}

fn refused(detail: impl std::fmt::Display) -> Error {
    Error::invalid("spec.cron", detail)
}

/// The fields of an expression that has so many.
fn fields_of(fields: &[&str]) -> Result<&'static [Field]> {
    match fields.len() {
        5 => Ok(&FIELDS[1..]),
        6 => Ok(&FIELDS[..]),
        count => {
            let order = "minute, hour, day of month, month and day of week, with seconds before them if there are six";
            Err(refused(format!("must have 5 or 6 fields ({order}), not {count}")))
        }
    }
}

impl Field {
    fn check_item(&self, item: &str) -> Result<(), String> {
        if item.is_empty() {
            return Err("An item of the list is empty.".to_owned());
        }
        let Some((_, step)) = item.split_once('/') else { return Ok(()) };
        match step.parse::<u32>() {
            Ok(step) if (1..=self.count).contains(&step) => Ok(()),
            _ => Err(format!("The step {step:?} is not between 1 and {}.", self.count)),
        }
    }

    fn refused(&self, text: &str, why: &str) -> Error {
        let Field { name, range, .. } = self;
        refused(format!("has the {name} {text:?}, which is wrong: {why} It may be {range}.")).with("cron_field", name)
    }
}

/// The field that cannot be read, found by reading each by itself.
fn guilty_field(fields: &[&str], known: &[Field]) -> Option<Error> {
    fields.iter().zip(known).enumerate().find_map(|(place, (text, field))| {
        let mut alone = vec!["*"; fields.len()];
        alone[place] = text;
        let why = read(&alone.join(" ")).err()?;
        Some(field.refused(text, &why))
    })
}
