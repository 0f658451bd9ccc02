import { z } from "zod";

const Person = z.object({ name: z.string().min(1), age: z.number().int().nonnegative() });
export type Person = z.infer<typeof Person>;
export const parse = (text: string): Person => Person.parse(JSON.parse(text));
