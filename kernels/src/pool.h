// Work split over threads: how many tasks, and what each of them is.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>

namespace selfspec {

class Pool {
 public:
  virtual ~Pool() = default;
  // Runs task(user, i) for every i < count and returns when all are done. Tasks do not throw.
  virtual void run(std::size_t count, void (*task)(void*, std::size_t), void* user) = 0;

  // The same for tasks that may throw: what the first of them threw is thrown here, when all are done. A thread of
  // ONNX Runtime's, with no frame of ours but the task's, would end the process.
  template <class Task>
  void each(std::size_t count, Task task) {
    if (count == 1) return task(0);
    Caught<Task> caught{task};
    run(count, [](void* user, std::size_t i) { static_cast<Caught<Task>*>(user)->call(i); }, &caught);
    if (caught.thrown) std::rethrow_exception(caught.thrown);
  }

 private:
  template <class Task>
  struct Caught {
    Task& task;
    std::atomic<bool> failed{false};
    std::exception_ptr thrown{};

    void call(std::size_t i) {
      try {
        task(i);
      } catch (...) {
        if (!failed.exchange(true)) thrown = std::current_exception();
      }
    }
  };
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
