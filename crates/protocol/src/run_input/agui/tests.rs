mod calls;
mod input;
mod judge;
mod resumed;
mod sequences;
mod translate;
