// What is remembered in this browser, where it lets us remember anything.

export function recall(name) {
  try {
    return localStorage.getItem(`plaudit-${name}`);
  } catch {
    return null;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`plaudit-${name}`, value);
  } catch { /* then not */ }
}
