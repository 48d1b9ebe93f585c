/**
 * A function that runs `act` soon, but starts it at most every `milliseconds` and never twice at once. Calls made while
 * it runs or waits become one more run: many changes cause one read.
 */
export function throttled(act, milliseconds) {
  let timer = null;
  let endedAt = 0;
  let isRunning = false;
  let runAgain = false;
  const run = async () => {
    timer = null;
    isRunning = true;
    try {
      await act();
    } finally {
      isRunning = false;
      endedAt = Date.now();
      if (runAgain) request();
    }
  };
  const request = () => {
    runAgain = isRunning;
    if (!isRunning) timer ??= setTimeout(run, Math.max(0, endedAt + milliseconds - Date.now()));
  };
  request.cancel = () => {
    clearTimeout(timer);
    timer = null;
    runAgain = false;
  };
  return request;
}
