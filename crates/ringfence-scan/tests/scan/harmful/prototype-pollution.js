const merge = (target, source) => {
  for (const key of Object.keys(source)) target[key] = source[key];
  return target;
};
const base = {};
base.__proto__ = merge({}, JSON.parse('{"isAdmin": true}'));
