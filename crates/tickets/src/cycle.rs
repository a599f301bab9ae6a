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
    mut dependencies_of: impl FnMut(N) -> Result<Vec<N>, E>,
) -> Result<Option<Vec<N>>, E> {
    // Each node that was reached, with its predecessor.
    let mut reached: BTreeMap<N, N> = BTreeMap::new();
    let mut next: Vec<(N, N)> = dependencies.iter().rev().map(|one| (*one, start)).collect();
    while let Some((node, from)) = next.pop() {
        if node == start {
            return Ok(Some(path_back(start, from, &reached)));
        }
        if reached.contains_key(&node) {
            continue;
        }
        reached.insert(node, from);
        next.extend(dependencies_of(node)?.into_iter().rev().map(|one| (one, node)));
    }
    Ok(None)
}

fn path_back<N: Copy + Ord>(start: N, last: N, reached: &BTreeMap<N, N>) -> Vec<N> {
    let mut path = vec![start];
    let mut node = last;
    while node != start {
        path.push(node);
        match reached.get(&node) {
            Some(from) => node = *from,
            None => break,
        }
    }
    path.push(start);
    path.reverse();
    path
}

/// Finds a cycle among nodes that are given by their indices, as a path whose first node is repeated at the end.
pub(crate) fn cycle_among(dependencies: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut open_dependencies: Vec<usize> = dependencies.iter().map(Vec::len).collect();
    let mut dependents = vec![Vec::new(); dependencies.len()];
    for (node, needs) in dependencies.iter().enumerate() {
        for need in needs {
            dependents[*need].push(node);
        }
    }
    let mut ready: Vec<usize> =
        (0..open_dependencies.len()).filter(|node| open_dependencies[*node] == 0).collect();
    while let Some(node) = ready.pop() {
        for dependent in &dependents[node] {
            open_dependencies[*dependent] -= 1;
            if open_dependencies[*dependent] == 0 {
                ready.push(*dependent);
            }
        }
    }
    // Each remaining node depends on a remaining node, so following dependencies must reach a node twice.
    let mut path = vec![(0..open_dependencies.len()).find(|node| open_dependencies[*node] > 0)?];
    loop {
        let last = *path.last()?;
        let next = dependencies[last].iter().copied().find(|need| open_dependencies[*need] > 0)?;
        if let Some(first) = path.iter().position(|node| *node == next) {
            path.drain(..first);
            path.push(next);
            return Some(path);
        }
        path.push(next);
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
    fn the_cycle_is_returned_in_order() {
        assert_eq!(find(1, &[1], &[]), Some(vec![1, 1]));
        assert_eq!(find(1, &[2], &[(2, 1)]), Some(vec![1, 2, 1]));
        assert_eq!(find(1, &[4, 2], &[(2, 3), (3, 1), (4, 5)]), Some(vec![1, 2, 3, 1]));
        assert_eq!(find(1, &[2, 3], &[(2, 4), (3, 4), (4, 5)]), None, "two ways to one end are no circle");
        assert_eq!(find(1, &[2], &[(2, 3), (3, 2)]), None, "a circle elsewhere is not its own");
    }

    #[test]
    fn acyclic_graphs_have_no_cycle() {
        assert_eq!(cycle_among(&[vec![1, 2], vec![2], vec![]]), None);
        assert_eq!(cycle_among(&[vec![0]]), Some(vec![0, 0]));
        assert_eq!(cycle_among(&[vec![1], vec![2], vec![3], vec![1]]), Some(vec![1, 2, 3, 1]));
        assert_eq!(cycle_among(&[]), None);
    }

    proptest! {
        #[test]
        fn cycle_among_agrees_with_find_cycle(
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
        fn find_cycle_agrees_with_the_transitive_closure(
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
