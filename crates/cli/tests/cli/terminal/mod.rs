//! What a person sees at a terminal while things change.

mod agreement;
mod answering;
mod attach;
mod ps;
mod run;
mod screens;
mod sse;
mod together;
mod trace;
