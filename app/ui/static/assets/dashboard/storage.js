// Settings kept in this browser. A browser may forbid storage: then nothing is kept and the defaults apply.

export function readSetting(name) {
  try {
    return localStorage.getItem(`plaudit-${name}`);
  } catch {
    return null;
  }
}

export function saveSetting(name, value) {
  try {
    localStorage.setItem(`plaudit-${name}`, value);
  } catch {
    // Without storage the setting lasts until the page is closed.
  }
}
