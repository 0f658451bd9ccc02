interface Repository<T extends { id: number }> {
  find(id: number): T | undefined;
  save(item: T): void;
}

export class Memory<T extends { id: number }> implements Repository<T> {
  private items = new Map<number, T>();
  find(id: number): T | undefined {
    return this.items.get(id);
  }
  save(item: T): void {
    this.items.set(item.id, item);
  }
}
