type Row = Record<string, string | number>;

export function table(rows: Row[]): string {
  const keys = Object.keys(rows[0] ?? {});
  const line = (cells: string[]) => `| ${cells.join(" | ")} |`;
  return [line(keys), line(keys.map(() => "---")), ...rows.map((row) => line(keys.map((key) => String(row[key]))))].join("\n");
}
