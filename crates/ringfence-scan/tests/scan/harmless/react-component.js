export function Counter({ start = 0 }) {
  let value = start;
  const listeners = new Set();
  return {
    increment: () => listeners.forEach((listener) => listener(++value)),
    subscribe: (listener) => (listeners.add(listener), () => listeners.delete(listener)),
  };
}
