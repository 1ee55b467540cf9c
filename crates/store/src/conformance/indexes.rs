//! Indexes: entries keyed by (index, member), with the score as data.

use ff_core::{IndexName, Key, limits};

use super::context::{Build, Context, batch};
use crate::{Batch, Guard};

/// A batch that may change entries.
pub(super) fn change(context: &Context) -> Batch {
    batch().guard(Guard::Absent(context.key("nobody")))
}

/// The names of the indexes of this case that begin with a prefix, without what all of them begin with.
async fn listed(context: &Context, prefix: &[u8], limit: usize) -> Vec<Vec<u8>> {
    let own = context.prefix();
    let names = context.store.indexes(context.partition, [&own, prefix].concat(), limit).await;
    names.expect("the store lists indexes").iter().map(|name| name.as_bytes()[own.len()..].to_vec()).collect()
}

pub(super) async fn an_entry_is_set_moved_and_removed(context: Context) {
    let (index, member) = (context.index("i"), context.key("m"));
    for score in [5, 3, 3, 9, -2, 0] {
        context.apply(change(&context).set(&index, &member, score)).await;
        assert_eq!(context.entries(&index).await, [(score, member.clone())]);
        assert_eq!(context.count(&index, i64::MIN, i64::MAX).await, 1);
    }
    context.apply(change(&context).unset(&index, &member)).await;
    assert_eq!(context.entries(&index).await, []);
}

pub(super) async fn removing_what_is_not_there_is_fine(context: Context) {
    let (index, member, other) = (context.index("i"), context.key("m"), context.key("other"));
    context.apply(change(&context).unset(&index, &member)).await;
    context.apply(change(&context).set(&index, &other, 1).unset(&index, &member)).await;
    assert_eq!(context.entries(&index).await, [(1, other)]);
}

pub(super) async fn one_member_stands_in_many_indexes(context: Context) {
    let member = context.key("m");
    let indexes: Vec<IndexName> = (0..20).map(|number| context.index(format!("i{number:02}"))).collect();
    let set = (0i64..).zip(&indexes).fold(change(&context), |batch, (score, index)| batch.set(index, &member, score));
    context.apply(set).await;
    context.apply(change(&context).unset(&indexes[3], &member).set(&indexes[4], &member, 40)).await;
    for (score, index) in (0i64..).zip(&indexes) {
        let expected = match score {
            3 => vec![],
            4 => vec![(40, member.clone())],
            _ => vec![(score, member.clone())],
        };
        assert_eq!(context.entries(index).await, expected, "{index:?}");
    }
}

pub(super) async fn many_members_of_one_index_change_in_one_batch(context: Context) {
    let (index, other) = (context.index("i"), context.index("other"));
    let member = |number: i64| context.key(format!("{number:03}"));
    let set = (0..250).fold(change(&context), |batch, number| {
        let batch = batch.set(&index, &member(number), number);
        if number % 2 == 0 { batch.set(&other, &member(number), -number) } else { batch }
    });
    context.apply(set).await;
    assert_eq!(context.count(&index, 0, 249).await, 250);
    assert_eq!(context.count(&other, -248, 0).await, 125);
    // Of each index some go, some move and some come, in no order.
    let changed = (0..260).fold(change(&context), |batch, number| match number % 3 {
        0 => batch.unset(&index, &member(number)).set(&other, &member(number), 1),
        1 => batch.set(&index, &member(number), -1_000 - number),
        _ => batch,
    });
    context.apply(changed).await;
    let moved = (0..260).rev().filter(|number| number % 3 == 1).map(|number| (-1_000 - number, member(number)));
    let stayed = (0..250).filter(|number| number % 3 == 2).map(|number| (number, member(number)));
    assert_eq!(context.entries(&index).await, moved.chain(stayed).collect::<Vec<_>>());
    assert_eq!(context.count(&other, 1, 1).await, 87);
}

pub(super) async fn counts_include_both_ends(context: Context) {
    let index = context.index("i");
    let scores = [-limits::SCORE_MAX, -5, 0, 0, 7, 8, limits::SCORE_MAX];
    let set = scores
        .iter()
        .enumerate()
        .fold(change(&context), |batch, (number, score)| batch.set(&index, &context.key(number.to_string()), *score));
    context.apply(set).await;
    for (min, max, expected) in [
        (i64::MIN, i64::MAX, 7),
        (-limits::SCORE_MAX, limits::SCORE_MAX, 7),
        (0, 0, 2),
        (-5, 7, 4),
        (-4, 6, 2),
        (1, 6, 0),
        (8, i64::MAX, 2),
        (limits::SCORE_MAX, limits::SCORE_MAX, 1),
        (-limits::SCORE_MAX, -limits::SCORE_MAX, 1),
        (5, -5, 0),
    ] {
        assert_eq!(context.count(&index, min, max).await, expected, "{min} to {max}");
    }
    assert_eq!(context.count(&context.index("unknown"), i64::MIN, i64::MAX).await, 0);
}

pub(super) async fn only_non_empty_indexes_are_listed(context: Context) {
    let (a, b, member) = (context.key("a"), context.key("b"), context.key("member"));
    assert_eq!(listed(&context, b"", 10).await, Vec::<Vec<u8>>::new());
    let set = change(&context)
        .set(&context.index("one"), &a, 1)
        .set(&context.index("one"), &b, 2)
        .set(&context.index("two"), &a, 1)
        .set(&context.index("other"), &a, 1);
    context.apply(set).await;
    context.create_leased(&member, &context.index("due"), 60_000).await;
    assert_eq!(listed(&context, b"", 10).await, [&b"due"[..], b"one", b"other", b"two"]);
    assert_eq!(listed(&context, b"o", 10).await, [&b"one"[..], b"other"]);
    assert_eq!(listed(&context, b"one", 10).await, [b"one"]);
    assert_eq!(listed(&context, b"onerous", 10).await, Vec::<Vec<u8>>::new());
    context.apply(change(&context).unset(&context.index("one"), &a).unset(&context.index("two"), &a)).await;
    assert_eq!(listed(&context, b"", 10).await, [&b"due"[..], b"one", b"other"]);
    context.apply(change(&context).set(&context.index("two"), &b, 1)).await;
    assert_eq!(listed(&context, b"t", 10).await, [b"two"]);
}

pub(super) async fn indexes_are_listed_in_byte_order_up_to_the_limit(context: Context) {
    let member = context.key("m");
    let mut names: Vec<Vec<u8>> =
        [&b"a"[..], b"a\0", b"a\xff", b"aa", b"A", b"\0", b"\xff", b"b", b"~", b"\x80"].map(<[u8]>::to_vec).to_vec();
    let set = names.iter().fold(change(&context), |batch, name| batch.set(&context.index(name), &member, 1));
    context.apply(set).await;
    names.sort();
    for limit in [0, 1, 4, 10, 1_000] {
        assert_eq!(listed(&context, b"", limit).await, names[..limit.min(10)], "limit {limit}");
    }
    assert_eq!(listed(&context, b"a", 3).await, [&b"a"[..], b"a\0", b"aa"]);
}

pub(super) async fn names_of_indexes_are_read_page_by_page(context: Context) {
    let member = context.key("m");
    let mut names: Vec<IndexName> =
        [&b"a"[..], b"a\0", b"a\xff", b"aa", b"ab", b"b", b"\xff"].map(|name| context.index(name)).to_vec();
    let set = names.iter().fold(change(&context), |batch, name| batch.set(name, &member, 1));
    context.apply(set).await;
    names.sort();
    for limit in [1, 2, 3, 7, 8] {
        let mut found: Vec<IndexName> = Vec::new();
        loop {
            let after = found.last().cloned();
            let page = context.store.indexes_after(context.partition, context.prefix(), after, limit).await.unwrap();
            assert!(page.len() <= limit);
            let ended = page.len() < limit;
            found.extend(page);
            if ended {
                break;
            }
        }
        assert_eq!(found, names, "{limit} at a time");
    }
    // Behind a name that is not there, within a prefix, and before the first of it.
    let behind = |prefix: &'static [u8], after: &'static [u8]| {
        let prefix = [&context.prefix()[..], prefix].concat();
        let after = Some(context.index(after));
        let context = &context;
        async move { context.store.indexes_after(context.partition, prefix, after, 10).await.unwrap() }
    };
    assert_eq!(behind(b"a", b"aaa").await, [context.index(b"ab"), context.index(b"a\xff")]);
    assert_eq!(behind(b"b", b"a").await, [context.index(b"b")]);
    assert_eq!(behind(b"b", b"b").await, []);
}

pub(super) async fn index_names_and_members_are_binary(context: Context) {
    let odd: [&[u8]; 12] =
        [b"\0", b"\xff", b"\xff\xff", b"{", b"}", b"{x}", b"*", b"[a]", b"%", b"_", b"\\", b"\r\n'\":"];
    let members: Vec<Key> = odd.iter().map(|name| context.key(name)).collect();
    for name in odd {
        let index = context.index(name);
        let set = members.iter().fold(change(&context), |batch, member| batch.set(&index, member, 1));
        context.apply(set).await;
    }
    let mut sorted = members;
    sorted.sort();
    for name in odd {
        let found: Vec<Key> = context.entries(&context.index(name)).await.into_iter().map(|(_, key)| key).collect();
        assert_eq!(found, sorted);
        assert!(listed(&context, name, 100).await.iter().all(|listed| listed.starts_with(name)));
        assert!(listed(&context, name, 100).await.contains(&name.to_vec()));
    }
    assert_eq!(listed(&context, b"", 100).await.len(), odd.len());
    assert_eq!(listed(&context, b"\xff", 100).await, [&b"\xff"[..], b"\xff\xff"]);
    assert_eq!(listed(&context, b"%", 100).await, [b"%"]);
}

pub(super) async fn the_longest_index_name_works(context: Context) {
    let length = limits::INDEX_NAME_MAX_BYTES - context.prefix().len();
    // Bytes without a pattern, so that no compression makes a long name short.
    let mut state = 1u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let long: Vec<u8> = (0..length).map(|_| noise()).collect();
    let mut twin = long.clone();
    if let Some(last) = twin.last_mut() {
        *last ^= 1;
    }
    let longest_member = context.key([7; limits::KEY_MAX_BYTES - 17]);
    let (first, second) = (context.index(&long), context.index(&twin));
    context.apply(change(&context).set(&first, &longest_member, 1).set(&second, &longest_member, 2)).await;
    assert_eq!(context.entries(&first).await, [(1, longest_member.clone())]);
    assert_eq!(context.entries(&second).await, [(2, longest_member.clone())]);
    let mut names = vec![long, twin];
    names.sort();
    assert_eq!(listed(&context, b"", 10).await, names);
    context.apply(change(&context).unset(&first, &longest_member)).await;
    assert_eq!(context.entries(&first).await, []);
    assert_eq!(context.count(&second, 2, 2).await, 1);
}
