//! Processes by their id.

use std::{fs, path::Path};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Kills a process.
pub fn kill(pid: u32) {
    send_signal(pid, Signal::KILL);
}

/// Stops a process, so that it answers nothing any more.
pub fn stop(pid: u32) {
    send_signal(pid, Signal::STOP);
}

/// Lets a process go on that was stopped.
pub fn go_on(pid: u32) {
    send_signal(pid, Signal::CONT);
}

fn send_signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    pidfd_send_signal(pidfd_open(pid, PidfdFlags::empty()).unwrap(), signal).unwrap();
}

/// The state letter of a process (proc_pid_stat(5)); `None` where there is no such process.
fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// A field of `/proc/PID/status`, such as `Uid`.
pub fn status_field(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}

/// Whether a process has ended and is not yet reaped.
pub fn is_zombie(pid: u32) -> bool {
    state(&pid.to_string()) == Some('Z')
}

/// Whether a process has ended. It may still be a zombie.
pub fn is_gone(pid: u32) -> bool {
    state(&pid.to_string()).is_none_or(|state| state == 'Z')
}

/// Whether the process is alive whose id a command wrote into this file.
pub fn is_alive(file: &Path) -> bool {
    let Ok(text) = fs::read_to_string(file) else { return false };
    state(text.trim()).is_some_and(|state| state != 'Z')
}
