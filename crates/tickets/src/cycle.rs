//! Tickets that would wait for each other.

use std::collections::BTreeMap;

/// A way from `start` over `dependencies` back to `start`, both ends included; `None` where there is none. `of` gives what a
/// node depends on; it is asked once for each. What it fails with ends the search.
///
/// # Errors
/// That of `of`.
pub fn find_cycle<N: Copy + Ord, E>(
    start: N,
    dependencies: &[N],
    mut of: impl FnMut(N) -> Result<Vec<N>, E>,
) -> Result<Option<Vec<N>>, E> {
    // From where each node was reached first.
    let mut reached: BTreeMap<N, N> = BTreeMap::new();
    let mut next: Vec<(N, N)> = dependencies.iter().rev().map(|one| (*one, start)).collect();
    while let Some((node, from)) = next.pop() {
        if node == start {
            return Ok(Some(way_back(start, from, &reached)));
        }
        if reached.contains_key(&node) {
            continue;
        }
        reached.insert(node, from);
        next.extend(of(node)?.into_iter().rev().map(|one| (one, node)));
    }
    Ok(None)
}

fn way_back<N: Copy + Ord>(start: N, last: N, reached: &BTreeMap<N, N>) -> Vec<N> {
    let mut way = vec![start];
    let mut node = last;
    while node != start {
        way.push(node);
        match reached.get(&node) {
            Some(from) => node = *from,
            None => break,
        }
    }
    way.push(start);
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn find(start: u8, dependencies: &[u8], edges: &[(u8, u8)]) -> Option<Vec<u8>> {
        let of = |node: u8| Ok(edges.iter().filter(|(from, _)| *from == node).map(|(_, to)| *to).collect());
        let found: Result<_, Infallible> = find_cycle(start, dependencies, of);
        found.unwrap()
    }

    #[test]
    fn the_way_round_is_told() {
        assert_eq!(find(1, &[1], &[]), Some(vec![1, 1]));
        assert_eq!(find(1, &[2], &[(2, 1)]), Some(vec![1, 2, 1]));
        assert_eq!(find(1, &[4, 2], &[(2, 3), (3, 1), (4, 5)]), Some(vec![1, 2, 3, 1]));
        assert_eq!(find(1, &[2, 3], &[(2, 4), (3, 4), (4, 5)]), None, "two ways to one end are no circle");
        assert_eq!(find(1, &[2], &[(2, 3), (3, 2)]), None, "a circle elsewhere is not its own");
    }

    proptest! {
        #[test]
        fn a_way_is_found_exactly_where_there_is_one(
            edges in prop::collection::vec((0..8_u8, 0..8_u8), 0..20),
            dependencies in prop::collection::vec(0..8_u8, 0..4),
        ) {
            // The closure, by brute force.
            let mut open: Vec<u8> = dependencies.clone();
            for _ in 0..8 {
                let more: Vec<u8> = edges.iter().filter(|(from, _)| open.contains(from)).map(|(_, to)| *to).collect();
                open.extend(more);
                open.sort_unstable();
                open.dedup();
            }
            let found = find(0, &dependencies, &edges);
            prop_assert_eq!(found.is_some(), open.contains(&0));
            if let Some(way) = found {
                prop_assert!(way.len() >= 2 && way[0] == 0 && way[way.len() - 1] == 0);
                prop_assert!(dependencies.contains(&way[1]));
                prop_assert!(way[1..].windows(2).all(|step| edges.contains(&(step[0], step[1]))));
            }
        }
    }
}
