//! Files as users meet them: broken models, crashes and full disks in the middle of a save.

mod breaking;
mod crashes;
mod models;
