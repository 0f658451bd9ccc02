class Money {
  constructor(amount) {
    this.amount = amount;
  }
  plus(other) {
    return new this.constructor(this.amount + other.amount);
  }
}
console.log(new Money(1).plus(new Money(2)).amount);
