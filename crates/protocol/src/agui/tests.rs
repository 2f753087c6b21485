mod input;
mod translate;
