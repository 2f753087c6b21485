//! From good inputs and a number to a case.

/// The longest case; parsers have limits of their own, and each at its value is tried elsewhere.
const CASE_BYTES_MAX: usize = 16 * 1024;
const CHANGES_MAX: usize = 8;
/// Numbers at which lengths and counts go wrong.
const EDGES: [u8; 8] = [0x00, 0x01, 0x7f, 0x80, 0x81, 0x84, 0xfe, 0xff];

/// Numbers by a fixed rule.
pub struct Dice(u64);

impl Dice {
    pub fn new(number: u64) -> Self {
        // Spread out, or neighbours would be alike (splitmix64).
        let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 to one less than this many; 0 of none.
    pub fn below(&mut self, count: usize) -> usize {
        if count == 0 { 0 } else { (self.next() >> 11) as usize % count }
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.next() as u8);
    }
}

pub struct Mutator {
    seeds: Vec<Vec<u8>>,
    words: &'static [&'static str],
}

impl Mutator {
    /// The first cases are the seeds as they are.
    pub fn new(seeds: Vec<Vec<u8>>, words: &'static [&'static str]) -> Self {
        assert!(!seeds.is_empty(), "there is something to begin with");
        Self { seeds, words }
    }

    pub fn case(&self, number: u64) -> Vec<u8> {
        if let Some(seed) = usize::try_from(number).ok().and_then(|number| self.seeds.get(number)) {
            return seed.clone();
        }
        let mut dice = Dice::new(number);
        let mut case = self.seeds[dice.below(self.seeds.len())].clone();
        for _ in 0..=dice.below(CHANGES_MAX) {
            self.change(&mut case, &mut dice);
        }
        case.truncate(CASE_BYTES_MAX);
        case
    }

    fn change(&self, case: &mut Vec<u8>, dice: &mut Dice) {
        let at = dice.below(case.len() + 1);
        let (start, end) = part(case.len(), dice);
        match dice.below(9) {
            0 => flip(case, dice),
            1 => set(case, at, EDGES[dice.below(EDGES.len())]),
            2 => set(case, at, dice.below(256) as u8),
            3 => drop(case.drain(start..end)),
            4 => {
                let again = case[start..end].to_vec();
                case.splice(at..at, again);
            }
            5 => {
                let word = self.words.get(dice.below(self.words.len())).copied().unwrap_or_default();
                case.splice(at..at, word.bytes());
            }
            6 => {
                let word = self.words.get(dice.below(self.words.len())).copied().unwrap_or_default();
                case.splice(start..end, word.bytes());
            }
            7 => {
                let other = &self.seeds[dice.below(self.seeds.len())];
                let (from, to) = part(other.len(), dice);
                case.splice(start..end, other[from..to].iter().copied());
            }
            _ => case.truncate(at),
        }
    }
}

/// A stretch of something so long, mostly a short one.
fn part(length: usize, dice: &mut Dice) -> (usize, usize) {
    let start = dice.below(length + 1);
    let rest = length - start;
    let most = if dice.below(4) == 0 { rest } else { rest.min(16) };
    (start, start + dice.below(most + 1))
}

fn flip(case: &mut [u8], dice: &mut Dice) {
    let at = dice.below(case.len());
    if let Some(byte) = case.get_mut(at) {
        *byte ^= 1 << dice.below(8);
    }
}

fn set(case: &mut [u8], at: usize, value: u8) {
    if let Some(byte) = case.get_mut(at) {
        *byte = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_follows_from_its_number() {
        let mutator = Mutator::new(vec![b"{\"a\":1}".to_vec(), b"[]".to_vec()], &["null"]);
        assert_eq!(mutator.case(1), b"[]");
        let cases: Vec<_> = (2..1_000).map(|number| mutator.case(number)).collect();
        assert_eq!(cases, (2..1_000).map(|number| mutator.case(number)).collect::<Vec<_>>());
        let different: std::collections::BTreeSet<_> = cases.iter().collect();
        assert!(different.len() > 600, "{}", different.len());
    }
}
