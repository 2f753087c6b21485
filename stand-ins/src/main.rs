//! A stand-in as a separate program, for measurements: it prints its address in one line, and ends when its standard input
//! closes.

use std::io::Read;

#[expect(clippy::print_stdout, reason = "the address is the output of this program")]
fn main() {
    let endpoint = ostler_stand_ins::responses();
    println!("{}", endpoint.base_url());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
