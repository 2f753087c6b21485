//! What a person sees at a terminal while things change.

mod ps;
mod run;
mod trace;
