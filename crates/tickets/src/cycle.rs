//! Detection of cycles in the dependencies of tickets.

use std::collections::BTreeMap;

/// Finds a path from `start` along dependencies back to `start`, with `start` at both ends. `of` returns the
/// dependencies of a node and is called once for each node. An error of `of` ends the search.
///
/// # Errors
/// The error of `of`.
pub fn find_cycle<N: Copy + Ord, E>(
    start: N,
    dependencies: &[N],
    mut of: impl FnMut(N) -> Result<Vec<N>, E>,
) -> Result<Option<Vec<N>>, E> {
    // Each node that was reached, with its predecessor.
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

/// Finds a cycle among nodes that are given by their indices, as a path whose first node is repeated at the end.
pub fn cycle_among(dependencies: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut open: Vec<usize> = dependencies.iter().map(Vec::len).collect();
    let mut dependents = vec![Vec::new(); dependencies.len()];
    for (node, needs) in dependencies.iter().enumerate() {
        for need in needs {
            dependents[*need].push(node);
        }
    }
    let mut free: Vec<usize> = (0..open.len()).filter(|node| open[*node] == 0).collect();
    while let Some(node) = free.pop() {
        for dependent in &dependents[node] {
            open[*dependent] -= 1;
            if open[*dependent] == 0 {
                free.push(*dependent);
            }
        }
    }
    // Each remaining node depends on a remaining node, so following dependencies must reach a node twice.
    let mut way = vec![(0..open.len()).find(|node| open[*node] > 0)?];
    loop {
        let last = *way.last()?;
        let next = dependencies[last].iter().copied().find(|need| open[*need] > 0)?;
        if let Some(first) = way.iter().position(|node| *node == next) {
            way.drain(..first);
            way.push(next);
            return Some(way);
        }
        way.push(next);
    }
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

    #[test]
    fn a_graph_without_a_way_round_has_none() {
        assert_eq!(cycle_among(&[vec![1, 2], vec![2], vec![]]), None);
        assert_eq!(cycle_among(&[vec![0]]), Some(vec![0, 0]));
        assert_eq!(cycle_among(&[vec![1], vec![2], vec![3], vec![1]]), Some(vec![1, 2, 3, 1]));
        assert_eq!(cycle_among(&[]), None);
    }

    proptest! {
        #[test]
        fn a_way_among_all_is_found_exactly_where_one_of_them_has_one(
            edges in prop::collection::vec((0..6_u8, 0..6_u8), 0..14),
        ) {
            let needs = |node: u8| edges.iter().filter(|(from, _)| *from == node).map(|(_, to)| *to).collect::<Vec<_>>();
            let graph: Vec<Vec<usize>> = (0..6).map(|node| needs(node).into_iter().map(usize::from).collect()).collect();
            let any = (0..6).any(|node| find(node, &needs(node), &edges).is_some());
            let found = cycle_among(&graph);
            prop_assert_eq!(found.is_some(), any);
            if let Some(way) = found {
                prop_assert!(way.len() >= 2 && way.first() == way.last());
                prop_assert!(way.windows(2).all(|step| graph[step[0]].contains(&step[1])));
            }
        }

        #[test]
        fn a_way_is_found_exactly_where_there_is_one(
            edges in prop::collection::vec((0..8_u8, 0..8_u8), 0..20),
            dependencies in prop::collection::vec(0..8_u8, 0..4),
        ) {
            // The transitive closure, by brute force.
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
