import gymnasium
import made
from stable_baselines3 import PPO

agent = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=64, batch_size=32, n_epochs=2,
            seed=0, device="cpu")
agent.learn(256)
made.tell("steps", agent.num_timesteps)
made.tell_weights(agent.policy)
