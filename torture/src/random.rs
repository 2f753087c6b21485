//! The only source of choices: a small seeded generator (SplitMix64), so that a round can be repeated by its seed.

use std::ops::Range;
use std::time::Duration;

#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number of a range that is not empty.
    pub(crate) fn between(&mut self, range: Range<u64>) -> u64 {
        range.start + self.draw() % (range.end - range.start)
    }

    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.between(range))
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.between(0..100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.between(0..of.len() as u64) as usize]
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.between(0..end as u64 + 1) as usize);
        }
    }

    /// A generator of its own for a task that runs beside this one.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_choices() {
        let choices = |seed| {
            let mut random = Random::new(seed);
            let mut items: Vec<u64> = (0..20).collect();
            random.shuffle(&mut items);
            (items, random.between(5..9), random.millis(1..100), *random.pick(&[1, 2, 3]))
        };
        assert_eq!(choices(7), choices(7));
        assert_ne!(choices(7).0, choices(8).0);
        assert!((5..9).contains(&choices(7).1));
    }
}
