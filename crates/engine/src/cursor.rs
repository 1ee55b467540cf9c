//! Cursors of lists: opaque to callers, a position inside. They name a place in an order, not a row, so that a list
//! that changes meanwhile goes on where it was.

use ff_core::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The cursor of a position.
pub(crate) fn encode(position: &impl Serialize) -> String {
    let bytes = rmp_serde::to_vec(position).expect("positions hold only types that msgpack can express");
    base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, bytes)
}

/// The position of a cursor, if the caller sent one.
pub(crate) fn decode<T: DeserializeOwned>(cursor: Option<&str>) -> Result<Option<T>> {
    let Some(cursor) = cursor else { return Ok(None) };
    let refusal = || Error::invalid("cursor", "is none that this list has given out");
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, cursor);
    let bytes = bytes.map_err(|_| refusal())?;
    let mut rest = bytes.as_slice();
    let position = rmp_serde::from_read(&mut rest).map_err(|_| refusal())?;
    // A position with something behind it was not given out by a list either.
    if rest.is_empty() { Ok(Some(position)) } else { Err(refusal()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_position_and_nonsense_is_refused() {
        let position = (7_i64, "x".to_owned());
        assert_eq!(decode(Some(&encode(&position))).unwrap(), Some(position));
        assert_eq!(decode::<(i64, String)>(None).unwrap(), None);
        for nonsense in ["", "!", "AAAA", &format!("{}AAAA", encode(&(7_i64, "xy".to_owned())))] {
            assert_eq!(decode::<(i64, String)>(Some(nonsense)).unwrap_err().details["field"], "cursor", "{nonsense}");
        }
    }
}
