mod input;
mod judge;
mod sequences;
mod translate;
