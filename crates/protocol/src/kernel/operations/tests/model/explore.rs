//! Explores every reachable state, and finds those from which no end can be reached by the system's own actions.

use std::collections::{HashMap, VecDeque};

use super::world::{Action, World};

#[derive(Debug)]
pub(super) struct Explored {
    pub states: usize,
    /// States in which nothing is left to do.
    pub ends: usize,
    /// The shortest way to a state from which no end can be reached.
    pub stuck: Option<Vec<Action>>,
}

#[derive(Default)]
struct Graph {
    numbers: HashMap<Vec<u8>, usize>,
    /// How each state was reached first. The first one has no way.
    ways: Vec<Option<(usize, Action)>>,
    /// From which states the system's own actions lead to this one.
    leading_here: Vec<Vec<usize>>,
    ends: Vec<usize>,
}

impl Graph {
    /// The number of the state, and whether it is new.
    fn number(&mut self, world: &World, way: Option<(usize, Action)>) -> (usize, bool) {
        let next = self.ways.len();
        let number = *self.numbers.entry(world.key()).or_insert(next);
        if number == next {
            self.ways.push(way);
            self.leading_here.push(vec![]);
            if world.is_at_end() {
                self.ends.push(number);
            }
        }
        (number, number == next)
    }

    fn way_to(&self, mut number: usize) -> Vec<Action> {
        let mut way = vec![];
        while let Some((before, action)) = self.ways[number] {
            way.push(action);
            number = before;
        }
        way.reverse();
        way
    }

    /// The first state found from which no end can be reached.
    fn stuck(&self) -> Option<usize> {
        let mut can_end = vec![false; self.ways.len()];
        let mut left = self.ends.clone();
        while let Some(number) = left.pop() {
            if !std::mem::replace(&mut can_end[number], true) {
                left.extend(&self.leading_here[number]);
            }
        }
        can_end.iter().position(|can_end| !can_end)
    }
}

pub(super) fn explore(start: World) -> Explored {
    let mut graph = Graph::default();
    graph.number(&start, None);
    let mut left = VecDeque::from([(0, start)]);
    while let Some((from, world)) = left.pop_front() {
        for action in world.actions() {
            let Some(next) = world.after(action) else { continue };
            if let Err(broken) = next.check_step(&world) {
                panic!("{broken} by {action:?} after {:#?}", graph.way_to(from));
            }
            let (to, is_new) = graph.number(&next, Some((from, action)));
            if action.is_systems_own() {
                graph.leading_here[to].push(from);
            }
            if is_new {
                left.push_back((to, next));
            }
        }
    }
    let stuck = graph.stuck().map(|number| graph.way_to(number));
    Explored { states: graph.ways.len(), ends: graph.ends.len(), stuck }
}
