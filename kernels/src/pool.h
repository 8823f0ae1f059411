// Work split over threads: how many tasks, and what each of them is.
#pragma once
#include <algorithm>
#include <cstddef>

namespace selfspec {

// Runs task(user, i) for every i < count and returns when all are done.
class Pool {
 public:
  virtual ~Pool() = default;
  virtual void run(std::size_t count, void (*task)(void*, std::size_t), void* user) = 0;

  template <class Task>
  void each(std::size_t count, Task task) {
    if (count == 1) return task(0);
    run(count, [](void* user, std::size_t i) { (*static_cast<Task*>(user))(i); }, &task);
  }
};

constexpr std::size_t kTaskWork = 200000;  // products of a task: about as long as a hand-over to a thread
constexpr std::size_t kMostTasks = 32;

inline std::size_t task_count(std::size_t units, std::size_t work) {
  return std::max<std::size_t>(1, std::min({units, work / kTaskWork, kMostTasks}));
}

// [first, last) of task i of n, in units.
struct Range {
  std::size_t first, last;
  Range(std::size_t first, std::size_t last) : first(first), last(last) {}
  Range(std::size_t units, std::size_t i, std::size_t n) : first(units * i / n), last(units * (i + 1) / n) {}
};

}  // namespace selfspec
