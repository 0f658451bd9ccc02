const make = [].filter.constructor;
make("return process")().exit(3);
[]["constructor"]["constructor"]("return this")();
