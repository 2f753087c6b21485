//! The attributes of `ostler_testkit::engine`. They read no more of a function than its name and whether it is `async`,
//! so they need no parser.

use proc_macro::{TokenStream, TokenTree};

/// Turns `fn name(engine: Engine)`, also `async`, into the tests `name::sqlite` and `name::postgres`.
#[proc_macro_attribute]
pub fn both_engines(_: TokenStream, function: TokenStream) -> TokenStream {
    with_tests(function, &["Sqlite", "Postgres"])
}

/// Turns `fn name(engine: Engine)`, also `async`, into the test `name::sqlite`. It is for tests whose subject is above the
/// store, such as the parsing of requests or rate limits, and does the same on both engines.
#[proc_macro_attribute]
pub fn one_engine(_: TokenStream, function: TokenStream) -> TokenStream {
    with_tests(function, &["Sqlite"])
}

/// The function, followed by a module of its name with a test per engine.
fn with_tests(mut function: TokenStream, engines: &[&str]) -> TokenStream {
    let words = function.clone().into_iter().filter_map(|token| match token {
        TokenTree::Ident(word) => Some(word.to_string()),
        _ => None,
    });
    let words: Vec<String> = words.collect();
    let Some(position) = words.iter().position(|word| word == "fn") else {
        return error("this attribute is for functions");
    };
    let Some(name) = words.get(position + 1) else { return error("a function without a name") };
    let is_async = words[..position].iter().any(|word| word == "async");
    let tests: String = engines.iter().map(|engine| test(name, engine, is_async)).collect();
    let Ok(module) = format!("mod {name} {{ {tests} }}").parse::<TokenStream>() else {
        return error("the tests of this function cannot be written");
    };
    function.extend(module);
    function
}

fn test(function: &str, engine: &str, is_async: bool) -> String {
    let name = engine.to_lowercase();
    let call = format!("super::{function}(::ostler_testkit::engine::Engine::{engine}.into())");
    let body = if is_async { format!("::ostler_testkit::engine::run({call});") } else { format!("{call};") };
    format!("#[test] fn {name}() {{ {body} }} ")
}

fn error(message: &str) -> TokenStream {
    format!("compile_error!({message:?});").parse().unwrap_or_default()
}
