//! A stand-in as a program of its own, for measurements: it says where it listens, in one line, and goes when its standard
//! input closes.

use std::io::Read;

fn main() {
    let endpoint = ostler_stand_ins::responses();
    println!("{}", endpoint.base_url());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
