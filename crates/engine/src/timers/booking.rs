//! The timer of a booking: its place was not taken in time, or its holder never settled the call.

use ff_core::index::Due;
use ff_core::provider::{Booking, BookingState};
use ff_core::{Key, Partition, Result};

use super::Timers;
use crate::providers::ProviderAsk;
use crate::transaction::{Command, Tx};

impl Timers {
    pub(super) async fn fire_booking(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        let verb = LookAtBooking { key: &key, score };
        let Some(booking) = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await? else {
            return Ok(());
        };
        let lapse = ProviderAsk::Lapse(booking.id());
        self.providers.ask_provider(&booking.namespace, &booking.provider, lapse).await.map(drop)
    }
}

/// Reads the booking if its time is up; otherwise repairs its entry.
struct LookAtBooking<'a> {
    key: &'a Key,
    score: i64,
}

impl Command for LookAtBooking<'_> {
    type Outcome = Option<Booking>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Booking>> {
        let Some(loaded) = tx.load::<Booking>(self.key.clone()).await? else {
            tx.remove_stray(self.key, Due::Timer.entry(self.key, self.score)).await?;
            return Ok(None);
        };
        let booking = loaded.document;
        if booking.is_over(tx.now) {
            return Ok(Some(booking));
        }
        let next = (booking.state != BookingState::Settled).then_some(booking.until);
        tx.repair_due(self.key, next, self.score).await?;
        Ok(None)
    }
}
