type Formula = { text: string };
export const compute = (formula: Formula, scope: Record<string, number>): unknown =>
  new Function(...Object.keys(scope), `return ${formula.text}`)(...Object.values(scope));
