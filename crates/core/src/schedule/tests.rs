//! Schedules, and an independent computation of cron expressions in time zones.
