const api = new URL("https://api.example.org/v2/");

export async function get<T>(path: string): Promise<T> {
  const response = await fetch(new URL(path, api));
  return (await response.json()) as T;
}
