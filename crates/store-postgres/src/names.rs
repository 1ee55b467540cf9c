//! Index names as the tables hold them. A B-tree refuses keys past 2,704 bytes, and an index name may have 8 KiB:
//! long ones stand shortened in `entries`, with their full text in `long_names`.

use std::borrow::Cow;

use ff_core::IndexName;
use ff_core::partition::digest16;

/// Longer names are shortened to this many bytes and a digest. A short name is never as long as a shortened one.
pub(crate) const SHORT_MAX_BYTES: usize = 960;

/// The name as it stands in `entries`.
pub(crate) fn stored(name: &IndexName) -> Cow<'_, [u8]> {
    let bytes = name.as_bytes();
    match bytes.get(..SHORT_MAX_BYTES) {
        Some(beginning) if is_long(bytes) => Cow::Owned([beginning, &digest16(&[bytes])].concat()),
        _ => Cow::Borrowed(bytes),
    }
}

/// Whether a name, in full or as stored, is one of the long ones.
pub(crate) fn is_long(bytes: &[u8]) -> bool {
    bytes.len() > SHORT_MAX_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_fit_and_stay_apart() {
        let name = |length: usize, last: u8| {
            let mut bytes = vec![b'a'; length];
            bytes.push(last);
            IndexName::from_bytes(bytes)
        };
        assert_eq!(stored(&name(10, b'x')).as_ref(), name(10, b'x').as_bytes());
        let (one, two) = (name(8000, b'x'), name(8000, b'y'));
        assert_ne!(stored(&one), stored(&two));
        assert!(stored(&one).len() < 1_000 && is_long(&stored(&one)));
        assert!(!is_long(&stored(&name(SHORT_MAX_BYTES - 1, b'x'))));
    }
}
