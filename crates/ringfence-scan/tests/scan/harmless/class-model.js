class Stack {
  #items = [];
  push(item) {
    this.#items.push(item);
    return this;
  }
  pop() {
    return this.#items.pop();
  }
  get size() {
    return this.#items.length;
  }
}
console.log(new Stack().push(1).push(2).size);
