//! Windows of the calendar: a budget for each day or month, as the clocks on the walls of a time zone have it.

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::error::{Error, Result};
use crate::schedule::DEFAULT_TIME_ZONE;
use crate::{document, vocabulary};

vocabulary! {
    /// How long a window of the calendar is.
    #[derive(Default)]
    pub enum CalendarUnit {
        /// From midnight to midnight.
        #[default]
        Day "day",
        /// From the first midnight of a month to that of the next.
        Month "month",
    }
}

document! {
    /// A window of the calendar.
    pub api struct CalendarWindow {
        /// How long it is.
        "u" unit: CalendarUnit,
        /// The time zone whose midnight counts, such as `Europe/Berlin`.
        "z" time_zone: String = DEFAULT_TIME_ZONE.to_owned(),
    }
}

impl CalendarWindow {
    /// Refuses an unknown time zone.
    pub fn validate(&self) -> Result<()> {
        self.zone().map(drop).ok_or_else(|| {
            let detail = format!("{:?} is not a time zone; write one such as Europe/Berlin or UTC", self.time_zone);
            Error::invalid("calendar.time_zone", detail)
        })
    }

    fn zone(&self) -> Option<TimeZone> {
        TimeZoneDatabase::bundled().get(&self.time_zone).ok()
    }

    /// The first instant of the window behind the one that an instant lies in. Where a change of the clock skips midnight,
    /// the day begins at the end of the gap.
    pub fn next_after(&self, now: i64) -> Option<i64> {
        let today = Timestamp::from_millisecond(now).ok()?.to_zoned(self.zone()?);
        let last = match self.unit {
            CalendarUnit::Day => today,
            CalendarUnit::Month => today.last_of_month().ok()?,
            CalendarUnit::Unknown(_) => return None,
        };
        let begins = last.tomorrow().ok()?.start_of_day().ok()?;
        Some(begins.timestamp().as_millisecond())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(unit: CalendarUnit, zone: &str, from: &str) -> String {
        let window = CalendarWindow { unit, time_zone: zone.into(), ..Default::default() };
        window.validate().unwrap();
        let from: Timestamp = from.parse().unwrap();
        Timestamp::from_millisecond(window.next_after(from.as_millisecond()).unwrap()).unwrap().to_string()
    }

    #[test]
    fn a_day_ends_at_the_midnight_of_its_zone_also_when_the_clock_changes() {
        use CalendarUnit::{Day, Month};
        assert_eq!(next(Day, "UTC", "2026-11-16T12:00:00Z"), "2026-11-17T00:00:00Z");
        assert_eq!(
            next(Day, "UTC", "2026-11-17T00:00:00Z"),
            "2026-11-18T00:00:00Z",
            "a window does not end as it begins"
        );
        assert_eq!(next(Day, "Europe/Berlin", "2026-03-28T23:30:00Z"), "2026-03-29T22:00:00Z", "a day of 23 hours");
        assert_eq!(next(Day, "Europe/Berlin", "2026-10-24T22:30:00Z"), "2026-10-25T23:00:00Z", "a day of 25 hours");
        assert_eq!(next(Month, "America/New_York", "2026-12-31T12:00:00Z"), "2027-01-01T05:00:00Z");
        assert_eq!(next(Month, "UTC", "2028-02-01T00:00:00Z"), "2028-03-01T00:00:00Z");
    }

    #[test]
    fn a_zone_that_nobody_knows_names_its_field() {
        let window = CalendarWindow { time_zone: "Mars/Olympus".into(), ..Default::default() };
        assert_eq!(window.validate().unwrap_err().details["field"], "calendar.time_zone");
    }
}
