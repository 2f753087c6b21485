//! The file system that SQLite is given: the default one, with the operations that can fail wrapped.

#![expect(unsafe_code, reason = "SQLite takes a file system as a table of C functions")]

use std::{
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicPtr, Ordering},
    },
};

use rusqlite::ffi;

use super::{Operation, failure};

/// A copy of a file's methods with some replaced, followed by the originals. `repr(C)`: SQLite sees the first field.
#[repr(C)]
struct Wrapped {
    methods: ffi::sqlite3_io_methods,
    original: *const ffi::sqlite3_io_methods,
}

static ORIGINAL: AtomicPtr<ffi::sqlite3_vfs> = AtomicPtr::new(null_mut());
/// Addresses of method tables and of their wrapped copies. There are a handful per process.
static TABLES: Mutex<Vec<(usize, usize)>> = Mutex::new(vec![]);

/// Makes the wrapped file system the default. `false` if SQLite refused it.
pub(super) fn register() -> bool {
    // SAFETY: a null name asks for the default file system, which lives as long as the process.
    let original = unsafe { ffi::sqlite3_vfs_find(null()) };
    if original.is_null() {
        return false;
    }
    // SAFETY: it is not null, and nothing writes to it but SQLite's own list, whose link is reset below.
    let mut copy = unsafe { *original };
    copy.zName = c"faulty".as_ptr();
    copy.pNext = null_mut();
    copy.xOpen = Some(open);
    ORIGINAL.store(original, Ordering::SeqCst);
    // SAFETY: the copy is leaked, as SQLite keeps the pointer; all its functions are the default's, except `open`.
    unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(copy)), 1) == ffi::SQLITE_OK }
}

/// A table with our functions in front of these.
fn wrap(original: *const ffi::sqlite3_io_methods) -> *const ffi::sqlite3_io_methods {
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, wrapped)) = tables.iter().find(|(known, _)| *known == original as usize) {
        return *wrapped as *const ffi::sqlite3_io_methods;
    }
    // SAFETY: SQLite's method tables are constants of the program.
    let mut methods = unsafe { *original };
    methods.xRead = Some(read);
    methods.xWrite = Some(write);
    methods.xSync = Some(sync);
    methods.xTruncate = Some(truncate);
    let wrapped: *const Wrapped = Box::leak(Box::new(Wrapped { methods, original }));
    tables.push((original as usize, wrapped as usize));
    wrapped.cast()
}

/// The methods that a file had before it was wrapped.
///
/// # Safety
/// `file` was opened by [`open`], which replaced its table by one of [`wrap`].
unsafe fn original_of<'a>(file: *mut ffi::sqlite3_file) -> &'a ffi::sqlite3_io_methods {
    // SAFETY: as above; wrapped tables and originals are never freed.
    unsafe { &*(*(*file).pMethods.cast::<Wrapped>()).original }
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    if let Some(code) = failure(Operation::Open) {
        // SAFETY: SQLite gives space for a file, and reads this field to see whether it must be closed.
        unsafe { (*file).pMethods = null() };
        return code;
    }
    let original = ORIGINAL.load(Ordering::SeqCst);
    // SAFETY: the default file system's own function, called with itself and with what SQLite gave us.
    unsafe {
        let Some(open) = (*original).xOpen else { return ffi::SQLITE_CANTOPEN };
        let code = open(original, name, file, flags, flags_out);
        if !(*file).pMethods.is_null() {
            (*file).pMethods = wrap((*file).pMethods);
        }
        code
    }
}

unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, to: *mut c_void, amount: c_int, offset: i64) -> c_int {
    if let Some(code) = failure(Operation::Read) {
        return code;
    }
    // SAFETY: the original function with the arguments that SQLite gave us.
    unsafe { original_of(file).xRead.map_or(ffi::SQLITE_IOERR_READ, |call| call(file, to, amount, offset)) }
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, from: *const c_void, amount: c_int, offset: i64) -> c_int {
    if let Some(code) = failure(Operation::Write) {
        return code;
    }
    // SAFETY: the original function with the arguments that SQLite gave us.
    unsafe { original_of(file).xWrite.map_or(ffi::SQLITE_IOERR_WRITE, |call| call(file, from, amount, offset)) }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    if let Some(code) = failure(Operation::Sync) {
        return code;
    }
    // SAFETY: the original function with the arguments that SQLite gave us.
    unsafe { original_of(file).xSync.map_or(ffi::SQLITE_IOERR_FSYNC, |call| call(file, flags)) }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    if let Some(code) = failure(Operation::Truncate) {
        return code;
    }
    // SAFETY: the original function with the arguments that SQLite gave us.
    unsafe { original_of(file).xTruncate.map_or(ffi::SQLITE_IOERR_TRUNCATE, |call| call(file, size)) }
}
