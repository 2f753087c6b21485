//! The manager dialect: the kernel's sessions, runs, commands and their parts over REST. It only translates: each handler calls
//! one function of the engine's services.

mod capabilities;
mod http;
mod shapes;

use ostler_server::dialect::Dialect;

pub fn dialect() -> Dialect {
    Dialect::new("manager").routes(http::routes).capabilities(capabilities::CAPABILITIES).shapes(shapes::SHAPES)
}
