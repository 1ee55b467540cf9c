//! A read-only inspection of a file, which may happen while another process uses it.

use ff_store::{Layout, Look, Result};
use rusqlite::{Connection, OpenFlags};

use crate::{Options, Sync, connect, error, schema};

/// Inspects a file. A file that does not exist has no layout yet.
pub fn look(options: &Options) -> Result<Look> {
    let path = connect::locate(&options.path)?;
    let mut look = Look {
        version: rusqlite::version().to_owned(),
        layout: Layout { found: None, needed: schema::known() },
        settings: Vec::new(),
        warnings: Vec::new(),
    };
    let synchronous = match options.sync {
        Sync::Full => "FULL",
        Sync::Normal => {
            look.warnings.push("sync=normal: a power loss may take the last moments; sync=full survives it".into());
            "NORMAL"
        }
    };
    look.settings.push(("synchronous".into(), synchronous.into()));
    if !path.exists() {
        return Ok(look);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let wrong = |why| error::before_commit(&why);
    let connection = Connection::open_with_flags(&path, flags).map_err(wrong)?;
    let found = schema::recognise(&connection)?;
    look.layout.found = (found > 0).then_some(found);
    let mode = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(wrong)?;
    look.settings.push(("journal_mode".into(), mode));
    for pragma in ["page_size", "page_count", "freelist_count"] {
        let number: i64 = connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0)).map_err(wrong)?;
        look.settings.push((pragma.into(), number.to_string()));
    }
    Ok(look)
}
